"""Tools: what a client lets the model call, and the calls found in what the model says."""
