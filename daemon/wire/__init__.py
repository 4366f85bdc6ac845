"""Frames, channels and columns: how llmd's own processes speak to each other."""
