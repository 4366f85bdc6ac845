"""Server-sent events as OpenAI's servers write them, decoded only as far as a measurement needs.

The load generator shares the machine with the server it measures, so an event is decoded once, into
the few fields that count, and its text is examined and dropped.
"""

from typing import Any

import msgspec

DONE = b"[DONE]"
REPETITION = "repetition"
"""The `stop_reason` of an answer that llmd ended because it repeated itself."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""The exceptions of decoding: the second where the JSON is not UTF-8."""


class Delta(msgspec.Struct):
    """The addition of a chat's event."""

    content: str | None = None
    reasoning_content: str | None = None  # thoughts before the answer
    role: str | None = None


class Choice(msgspec.Struct):
    """`text` in a completion, `delta` in a chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # as in vLLM; `repetition` is llmd's own
    index: int = 0  # of a request's several choices


class PromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The server's own counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(msgspec.Struct):
    """One event. `error` and `message` are set where the server gave up in mid-stream."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None
    message: str | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the event that ends it."""
        return self.choices[0].finish_reason if self.choices else None

    @property
    def repeats(self) -> bool:
        """Whether it ends an answer that repeated itself."""
        return any(choice.stop_reason == REPETITION for choice in self.choices or [])

    @property
    def has_tokens(self) -> bool:
        """Whether it carries output: text, or a token without text.

        A chat's opening (a role, no text) carries none, and neither does an end without text.
        """
        if not self.choices:
            return False
        choice = self.choices[0]
        delta = choice.delta
        if choice.text or (delta and (delta.content or delta.reasoning_content)):
            return True
        opening = choice.delta is not None and choice.delta.role is not None
        return not opening and choice.finish_reason is None

    @property
    def fault(self) -> str:
        """The error's text; empty where there is none."""
        if self.error is not None:
            return error_text(self.error)
        return (self.message or "an error without a message") if self.object == "error" else ""


class EventParser:
    """Bytes in, in pieces of any size; events out. An event is one `data:` line."""

    def __init__(self) -> None:
        self._rest = b""
        self._decode = _decoder.decode

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises UNREADABLE where one is malformed."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                payload = line[5:].strip()
                if payload and payload != DONE:
                    events.append(self._decode(payload))
        return events


def error_text(error: object) -> str:
    """The message of an `error` object, however the server writes it."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error)


def usage_of(body: bytes) -> Usage:
    """The counts of an answer that was not streamed. Raises UNREADABLE."""
    return _decoder.decode(body).usage or Usage()


_decoder = msgspec.json.Decoder(Event)
