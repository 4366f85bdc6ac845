"""The scheduler of one instance: it decides which sequences run in the next step. Pure."""
