"""llmd-top: a terminal view of a running daemon."""
