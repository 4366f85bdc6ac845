"""The command line of llmd."""
