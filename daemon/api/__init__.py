"""The HTTP side: OpenAI's API over a process of its own, joined to the runtime by frames."""
