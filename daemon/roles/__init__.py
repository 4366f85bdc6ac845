"""Which instances compute prompts, draw tokens or do both: reckoned from the load. Pure."""
