"""Recorded lives of small daemons: what the Core was told, and digests of what it answered."""
