"""The base of every llmd process: logs, files, systemd's protocol, and close spellings."""
