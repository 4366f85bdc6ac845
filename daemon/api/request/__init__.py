"""A request as a client may write it: fields, their checks, and JSON schemas."""
