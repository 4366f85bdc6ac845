"""The configuration: files, flags, sources, refusals."""
