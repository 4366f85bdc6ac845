"""Model folders: their shape, conversion from GGUF, and the embedded model."""
