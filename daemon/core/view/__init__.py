"""Readers of a Core: the snapshot, the view of what is due, the checkpoint."""
