"""Shared code of OpenAI API clients: the chat and the load generator."""
