"""Who runs in the next step of one instance. Pure."""
