"""The worker's process: its messages, its start, and the faults it survives."""
