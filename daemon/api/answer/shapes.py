"""The JSON of OpenAI's answers, whole and in streamed pieces."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from daemon.api.answer.choice import AnswerChoice
from daemon.api.text.echo import Echo
from daemon.api.text.logprobs import TokenLogprob, best_of, finite, name_of
from daemon.api.text.token_bytes import TokenBytes

DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def usage(num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int) -> Json:
    """The `usage` object."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }


def event(data: bytes) -> bytes:
    """One SSE event."""
    return b"data: " + data + b"\n\n"


class AnswerShape(ABC):
    """The base of both kinds of completion; all pieces share `id` and `created`."""

    prefix: ClassVar[str]
    whole_name: ClassVar[str]
    piece_name: ClassVar[str]

    def __init__(self, model: str, tokens: TokenBytes, include_usage: bool = False) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head: Json = {"created": int(time.time()), "model": model, "system_fingerprint": None}
        self._tokens = tokens
        self._usage: Json = {"usage": None} if include_usage else {}

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """The event before a choice's first text, if any."""

    def opening_text(self, index: int) -> str:
        """The text that a whole answer begins with."""
        return ""

    @abstractmethod
    def delta(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        """A choice in a piece."""

    @abstractmethod
    def choice(self, index: int, text: str, logprobs: Json | None, reason: str) -> Json:
        """A choice in a whole answer."""

    @abstractmethod
    def logprobs(self, choice: AnswerChoice, entries: list[TokenLogprob]) -> Json:
        """The `logprobs` object of some of a choice's tokens."""

    def piece(self, delta: Json) -> bytes:
        """The event of one delta."""
        return self._event({"choices": [delta], **self._usage})

    def frame(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and after the JSON string of a choice's text in its events."""
        mark = f"the text of {self.id}"
        head, tail = self.piece(self.delta(index, mark, None, None)).split(
            msgspec.json.encode(mark)
        )
        return head, tail

    def usage_event(self, counts: Json) -> bytes:
        """The last event where `include_usage` was asked for; else nothing."""
        return self._event({"choices": [], "usage": counts}) if self._usage else b""

    def whole(self, choices: list[Json], counts: Json) -> bytes:
        """The body of an answer that is not streamed."""
        head = {"id": self.id, "object": self.whole_name, **self._head}
        return msgspec.json.encode({**head, "choices": choices, "usage": counts})

    def _event(self, rest: Json) -> bytes:
        head = {"id": self.id, "object": self.piece_name, **self._head}
        return event(msgspec.json.encode({**head, **rest}))


class ChatShape(AnswerShape):
    """`chat.completion` and its chunks."""

    prefix = "chatcmpl"
    whole_name = "chat.completion"
    piece_name = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        """The event before a choice's first text."""
        delta = {"role": "assistant", "content": ""}
        return self.piece({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def delta(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        """A choice in a piece."""
        delta: Json = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, index: int, text: str, logprobs: Json | None, reason: str) -> Json:
        """A choice in a whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, choice: AnswerChoice, entries: list[TokenLogprob]) -> Json:
        """The `logprobs` object of some of a choice's tokens."""
        content = [
            {
                **self._token(entry.token, entry.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        raw = self._tokens(token)
        text = raw.decode(errors="replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


class CompletionShape(AnswerShape):
    """`text_completion`; with `echo`, each answer begins with its prompt."""

    prefix = "cmpl"
    whole_name = "text_completion"
    piece_name = "text_completion"

    def __init__(
        self,
        model: str,
        tokens: TokenBytes,
        include_usage: bool = False,
        echoes: tuple[Echo, ...] = (),  # of each choice
    ) -> None:
        super().__init__(model, tokens, include_usage)
        self._echoes = echoes

    def opening(self, index: int) -> bytes:
        """The event before a choice's first text."""
        if not self._echoes:
            return b""
        text = self._echoes[index].text
        return self.piece(self.delta(index, text, self._echoed(index), None))

    def opening_text(self, index: int) -> str:
        """The text that a whole answer begins with."""
        return self._echoes[index].text if self._echoes else ""

    def delta(self, index: int, text: str, logprobs: Json | None, reason: str | None) -> Json:
        """A choice in a piece."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, index: int, text: str, logprobs: Json | None, reason: str) -> Json:
        """A choice in a whole answer."""
        echoed = self._echoed(index)
        if echoed is not None and logprobs is not None:
            logprobs = {key: values + logprobs[key] for key, values in echoed.items()}
        return self.delta(index, text, logprobs, reason)

    def logprobs(self, choice: AnswerChoice, entries: list[TokenLogprob]) -> Json:
        """The `logprobs` object of some of a choice's tokens."""
        begin = len(self.opening_text(choice.index))
        return self._columns(entries, [begin + entry.offset for entry in entries])

    def _echoed(self, index: int) -> Json | None:
        """The `logprobs` object of a choice's prompt, where it is wanted."""
        if not self._echoes or not self._echoes[index].scored:
            return None
        return self._echoes[index].columns

    def _columns(self, entries: Sequence[TokenLogprob], offsets: list[int]) -> Json:
        return {
            "tokens": [name_of(entry.token, self._tokens) for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [best_of(entry, self._tokens) for entry in entries],
            "text_offset": offsets,
        }
