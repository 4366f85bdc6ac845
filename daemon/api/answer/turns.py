"""Answers in turns as Gemma 4 writes them: thoughts, calls and words apart.

A thought is `<|channel>thought`, a line's end, its text and `<channel|>`. A call is
`<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`: keys are bare, texts stand between `<|"|>`, and
the rest is as in JSON. Once a call is whole it is passed on in the form that `CallReader` reads;
what is no call of a known function stays text. Behind `<|tool_response>` a model may only invent.
"""

import json
import re
from typing import Any

from daemon.api.answer.thoughts import ThoughtSplit
from daemon.api.text.markers import (
    TURN_CALL,
    TURN_CALL_ENDS,
    TURN_QUOTE,
    TURN_RESULT,
    TURN_THOUGHT,
    TURN_THOUGHT_ENDS,
    certain,
)
from daemon.api.tools.format import QWEN

_BEGINNINGS = (TURN_THOUGHT, TURN_CALL, TURN_RESULT)
_BEGINNING = re.compile("|".join(map(re.escape, _BEGINNINGS)))
_HEAD = re.compile(r"\s*call:\s*([^\s{]{1,64})\s*(?={)")
_NAME_ENDS = re.compile(rf"\n|(?={re.escape(TURN_THOUGHT_ENDS)})")
_BLANKS = re.compile(r"\s*")
_BARE = re.compile(r"[^,:\[\]{}]+")
_DECODER = json.JSONDecoder(strict=False)
_DEEPEST = 64


class TurnReader:
    """The reader of one answer in turns; `names`: of the functions that it may call, which it does
    once if not `several` calls are wanted.
    """

    def __init__(self, names: frozenset[str] = frozenset(), several: bool = True) -> None:
        self._names = names
        self._several = several
        self._buffer = ""  # not certain yet
        self._state = self._in_answer
        self._begins = False  # white space here belongs to no side
        self._thought = self._answer = ""  # certain, and not given yet

    def push(self, text: str) -> ThoughtSplit:
        """Take more text."""
        self._buffer += text
        while self._buffer and self._state():
            pass
        return self._given()

    def finish(self) -> ThoughtSplit:
        """Take the end: the rest goes to the side that was being written."""
        rest, self._buffer = self._buffer, ""
        if self._state == self._in_thought:
            self._thought += rest.rstrip()
        elif self._state == self._in_call:
            self._take_call(rest.removeprefix(TURN_CALL), rest)
        elif self._state == self._in_answer:
            self._answer += rest
        return self._given()

    def _given(self) -> ThoughtSplit:
        split = ThoughtSplit(self._thought, self._answer)
        self._thought = self._answer = ""
        return split

    # The states: each takes from the buffer and returns whether the next one may find more.

    def _in_answer(self) -> bool:
        if self._begins:
            self._buffer = self._buffer.lstrip()
            self._begins = not self._buffer
        found = _BEGINNING.search(self._buffer)
        sure = certain(self._buffer, _BEGINNINGS) if found is None else found.start()
        self._answer += self._buffer[:sure]
        self._buffer = self._buffer[sure:]
        if found is None:
            return False
        self._state = {
            TURN_THOUGHT: self._in_name,
            TURN_CALL: self._in_call,
            TURN_RESULT: self._behind,
        }[found[0]]
        return True

    def _in_name(self) -> bool:
        """The line that names a thought's channel."""
        found = _NAME_ENDS.search(self._buffer)
        if found is None:
            return False
        self._buffer = self._buffer[found.end() :]
        self._state = self._in_thought
        return True

    def _in_thought(self) -> bool:
        thought, marker, rest = self._buffer.partition(TURN_THOUGHT_ENDS)
        if marker:
            self._thought += thought.rstrip()
            self._buffer, self._begins, self._state = rest, True, self._in_answer
            return True
        sure = len(self._buffer[: certain(self._buffer, (TURN_THOUGHT_ENDS,))].rstrip())
        self._thought += self._buffer[:sure]
        self._buffer = self._buffer[sure:]
        return False

    def _in_call(self) -> bool:
        call, marker, rest = self._buffer.partition(TURN_CALL_ENDS)
        if not marker:
            return False
        self._buffer, self._state = rest, self._in_answer
        self._take_call(call.removeprefix(TURN_CALL), call + marker)
        return True

    def _behind(self) -> bool:
        self._buffer = ""
        return False

    def _take_call(self, call: str, raw: str) -> None:
        """Pass a call on; one that is none as the text that it is."""
        head = _HEAD.match(call)
        try:
            arguments = _arguments(call[head.end() :]) if head and head[1] in self._names else None
        except (ValueError, RecursionError):
            arguments = None
        if head is None or arguments is None:
            self._answer += raw
            return
        self._answer += QWEN.write([(head[1], arguments)])
        if not self._several:
            self._state = self._behind


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call. Raises ValueError."""
    found, end = _value(text, 0, 0)
    if text[end:].strip() or not isinstance(found, dict):
        raise ValueError
    return found


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at a place, and the place behind it. Raises ValueError."""
    at = _behind_blanks(text, at)
    if depth > _DEEPEST or at == len(text):
        raise ValueError
    if text.startswith(TURN_QUOTE, at):
        begin = at + len(TURN_QUOTE)
        end = text.index(TURN_QUOTE, begin)
        return text[begin:end], end + len(TURN_QUOTE)
    if text[at] == '"':
        return _DECODER.raw_decode(text, at)
    if text[at] in "{[":
        return _collection(text, at, depth)
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError
    return _plain(bare[0].strip()), bare.end()


def _collection(text: str, at: int, depth: int) -> tuple[Any, int]:
    closing = "}" if text[at] == "{" else "]"
    entries: dict[str, Any] = {}
    items: list[Any] = []
    at = _behind_blanks(text, at + 1)
    while not text.startswith(closing, at):
        value, at = _value(text, at, depth + 1)
        if closing == "}":
            at = _behind_blanks(text, at)
            if not text.startswith(":", at):
                raise ValueError
            key = value if isinstance(value, str) else json.dumps(value)
            entries[key], at = _value(text, at + 1, depth + 1)
        else:
            items.append(value)
        at = _behind_blanks(text, at)
        if text.startswith(",", at):
            at = _behind_blanks(text, at + 1)
        elif not text.startswith(closing, at):
            raise ValueError
    return (entries if closing == "}" else items), at + 1


def _plain(word: str) -> Any:
    """A bare word: a number, true, false or null; a key, or a text without its marks."""
    try:
        return json.loads(word, parse_constant=str)
    except ValueError:
        return word


def _behind_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return at if blanks is None else blanks.end()
