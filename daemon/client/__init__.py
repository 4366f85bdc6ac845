"""What speaks to any server of OpenAI's API: the chat, and the load generator."""
