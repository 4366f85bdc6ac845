"""The scheduler of one instance: it decides who runs in the next step. Pure."""
