"""The connection to the daemon that owns the Core."""
