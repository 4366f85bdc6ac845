"""The conversation so far, in the form of a chat completion's messages."""

from typing import Any

Messages = list[dict[str, str]]


class Conversation:
    """A system prompt, if any, and messages; a question without an answer is taken back."""

    def __init__(self, system: str = "") -> None:
        self._system = system
        self._turns: Messages = []

    @property
    def messages(self) -> Messages:
        """All of it, oldest first."""
        first: Messages = [{"role": "system", "content": self._system}] if self._system else []
        return first + self._turns

    def ask(self, text: str) -> None:
        """Add the user's message."""
        self._turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """Add the assistant's message; an empty one takes the question back."""
        if text:
            self._turns.append({"role": "assistant", "content": text})
        else:
            self._turns.pop()

    def begin_anew(self, system: str | None = None) -> None:
        """Forget all messages; use another system prompt, where one is given."""
        self._turns.clear()
        if system is not None:
            self._system = system


class ChatOptions:
    """The fields of every request of a chat, beside its messages."""

    def __init__(self, model: str, **fields: float | None) -> None:
        """`fields` that are None are not sent: the server's own defaults hold."""
        self.model = model
        self._fields = {name: value for name, value in fields.items() if value is not None}

    def body(self, messages: Messages) -> dict[str, Any]:
        """The request for the next answer."""
        return {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
        }
