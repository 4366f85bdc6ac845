"""Answers in one form, whether they came whole or in pieces, and what a part of one must be."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from tests.chaos.cases import Case


class Said(msgspec.Struct):
    """One choice of an answer, as far as it came."""

    text: str = ""
    reason: str | None = None
    calls: list[list[str]] = []  # name and arguments of each
    scores: dict[str, list[Any]] = {}  # by the name of the list in `logprobs`

    def begins(self, whole: "Said") -> bool:
        """Whether this is the beginning of a whole choice, or all of it."""
        if self.reason is not None:
            return self == whole
        calls = list(zip(self.calls, whole.calls, strict=False))
        return (
            whole.text.startswith(self.text)
            and len(self.calls) <= len(whole.calls)
            and all(one[0] == other[0] and other[1].startswith(one[1]) for one, other in calls)
            and all(whole.scores[name][: len(ones)] == ones for name, ones in self.scores.items())
        )


class Answer(msgspec.Struct):
    """All choices, by index, and the count of tokens."""

    said: dict[int, Said] = {}
    usage: dict[str, int] = {}

    def begins(self, whole: "Answer") -> bool:
        """Whether it is what one sees of `whole` when a stream breaks."""
        known = all(index in whole.said for index in self.said)
        return known and all(one.begins(whole.said[i]) for i, one in self.said.items())


class RefusedError(Exception):
    """An answer that is no 200: its status and what it says."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class ToldError(Exception):
    """A stream that tells why it ends early: the error's code, and all it says."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.code = error["code"]


async def ask(
    session: aiohttp.ClientSession,
    case: Case,
    stream: bool,
    so_far: Answer,
    heard: Callable[[], None],
) -> Answer:
    """Ask a case; `so_far` grows as pieces come, and `heard` is called for each.

    Raises RefusedError, ToldError, aiohttp's errors, and AssertionError where nothing may follow.
    """
    body = case.body
    if stream:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with session.post(case.path, json=body) as response:
        if response.status != 200:
            raise RefusedError(response.status, await response.text())
        if not stream:
            _add(so_far, await response.json())
            heard()
            return so_far
        done = False
        async for line in response.content:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                _add(so_far, json.loads(data))
                heard()
            done = done or data == "[DONE]"
    if not done:
        raise aiohttp.ClientPayloadError("the stream ended without an end")
    return so_far


def _add(answer: Answer, event: dict[str, Any]) -> None:
    """One event, or a whole answer."""
    if "error" in event:
        raise ToldError(event["error"])
    for choice in event["choices"]:
        said = answer.said.setdefault(choice["index"], Said(calls=[], scores={}))
        assert said.reason is None, f"a piece behind the end: {choice}"
        piece = choice.get("message") or choice.get("delta") or choice
        said.text += piece.get("text") or piece.get("content") or ""
        said.reason = choice["finish_reason"]
        for call in piece.get("tool_calls") or ():
            if call.get("id") is not None:
                said.calls.append([call["function"]["name"], ""])
            said.calls[-1][1] += call["function"].get("arguments") or ""
        for name, values in (choice.get("logprobs") or {}).items():
            if values:  # a stream says nothing of an empty answer, a whole one that it is empty
                said.scores.setdefault(name, []).extend(values)
    if event.get("usage"):
        answer.usage = {name: event["usage"][name] for name in _COUNTS}


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
