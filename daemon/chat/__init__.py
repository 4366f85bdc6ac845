"""A chat with a running daemon from a terminal or a pipe: `llmd chat`."""
