"""The paged KV cache and its 8-bit forms."""
