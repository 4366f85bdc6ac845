"""Recorded lives of small daemons: the Core's events, and digests of its actions."""
