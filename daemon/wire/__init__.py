"""Frames, channels and columns: how llmd's own processes talk to each other."""
