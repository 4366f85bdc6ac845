"""Which instance takes a sequence. Pure."""
