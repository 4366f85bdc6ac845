"""The API's process: its routes, and what it says of itself."""
