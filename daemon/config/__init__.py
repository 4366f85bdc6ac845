"""The configuration: its schema, where it is read from, and what is refused."""
