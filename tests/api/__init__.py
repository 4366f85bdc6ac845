"""The API process, driven over HTTP with a scripted runtime behind a real channel."""
