"""The worker's process: its messages, its start, and what it survives."""
