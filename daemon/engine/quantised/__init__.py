"""Quantised weights: they stay as their file holds them, and products read them so."""
