"""The `llmd` command: serve, check, ctl."""
