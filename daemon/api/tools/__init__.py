"""Tools: the functions that a client offers, and the calls found in the model's text."""
