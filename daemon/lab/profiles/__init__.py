"""Profiles that come with llmd, and converters from published tables."""
