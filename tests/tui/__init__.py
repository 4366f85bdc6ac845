"""The control socket and the dashboard."""
