"""An incremental reader of calls in a model's text.

One reader fits every format of `format.py`: a list or several calls between `<tool_call>` and
`</tool_call>`, calls after `<|python_tag|>`, and, where the format allows it, an answer that is
nothing but calls. A call counts once it reads `{"name": NAME, "arguments": {"` with a name that the
client knows; from there its arguments pass on as they come. Text that looks like a call and turns
out not to be one is text. Nothing is lost: each character is in exactly one piece, and the way the
text was split on arrival changes only where pieces are split.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from daemon.api.text.markers import CLOSING, OPENING, PYTHON, certain
from daemon.api.tools.nesting import Nesting

HEAD_CHARS = 512
"""The longest head of a call whose arguments stream; with a longer one they come whole."""

_KEYS = frozenset({"name", "arguments", "parameters", "type", "id"})
_OPENINGS = (OPENING, PYTHON)
_OPENING = re.compile("|".join(re.escape(marker) for marker in _OPENINGS))
_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]{1,64})"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{\s*["}])'
)
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]{0,16})"')
_FIRST_KEY_BEGINS = re.compile(r'\{\s*(?:"[^"\\]{0,16})?')
_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]{0,65})')


class Piece(NamedTuple):
    """A part of an answer: `raw` as the model wrote it, `text` as the client gets it."""

    kind: str  # "text" | "call" (its text is the name) | "arguments" | "mark" (the client: nothing)
    text: str
    raw: str


class CallReader:
    """The reader of one answer. `names` are the client's functions; `bare` as in `Format`.

    With `only_calls` a grammar allowed only calls: other text is a call that was cut short.
    """

    def __init__(self, names: frozenset[str], bare: bool, only_calls: bool = False) -> None:
        self.num_calls = 0
        self._names = names
        self._bare = bare
        self._no_call_is = "mark" if only_calls else "text"
        self._buffer = ""  # not yet in a piece
        self._pieces: list[Piece] = []
        self._state: Callable[[], bool] = self._in_text
        self._quiet = True  # white space here is text only if text follows
        self._in_list = False
        self._mark = 0  # the end of the buffer's opening marker, or separator and brace
        self._at = 0  # the call's brace, or where it may come
        self._nesting = Nesting()
        self._seen = 0  # letters of the buffer that the nesting has seen

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain after `text`."""
        self._buffer += text
        while self._buffer and self._state():
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def finish(self) -> list[Piece]:
        """The remaining pieces, at the end."""
        while self._buffer:
            if self._state in (self._in_opening, self._in_head):
                self._no_call()
                while self._buffer and self._state():
                    pass
            elif self._state == self._in_garbled:
                self._take("arguments", len(self._buffer))
            else:
                blank = self.num_calls > 0 and self._buffer.isspace()
                self._take("mark" if blank else self._no_call_is, len(self._buffer))
        pieces, self._pieces = self._pieces, []
        return pieces

    # The states: each takes from the buffer and returns whether the next state may find more.

    def _in_text(self) -> bool:
        buffer = self._buffer
        lead = _blank(buffer) if self._quiet else 0
        if lead == len(buffer):
            return False
        if self._bare and self._quiet and not self.num_calls and buffer[lead] == "{":
            return self._may_be_call(lead + 1, lead, self._in_head)
        found = _OPENING.search(buffer)
        if found is None:
            sure = certain(buffer, _OPENINGS)
            if sure > lead:
                self._take(self._no_call_is, sure)
                self._quiet = False
            return False
        if found.start() > lead:
            self._take(self._no_call_is, found.start())
        self._quiet = False
        end = len(self._buffer) - len(buffer) + found.end()
        return self._may_be_call(end, end, self._in_opening)

    def _in_opening(self) -> bool:
        at = self._at + _blank(self._buffer, self._at)
        if at == len(self._buffer):
            return False
        letter = self._buffer[at]
        if letter == "[" and not self._in_list:
            self._in_list = True
            self._at = at + 1
            return True
        if letter == "{":
            return self._may_be_call(self._mark, at, self._in_head)
        return self._no_call()

    def _in_head(self) -> bool:
        buffer, at = self._buffer, self._at
        head = _HEAD.match(buffer, at, at + HEAD_CHARS)
        if head is not None:
            if head[1] not in self._names:
                return self._no_call()
            self.num_calls += 1
            self._take("call", head.end(), head[1])
            self._nesting = Nesting()
            self._state = self._in_arguments
            return True
        if not self._plausible():
            return self._no_call()
        end = self._nesting.feed(buffer, self._seen)
        self._seen = len(buffer)
        if self._nesting.broken:
            return self._no_call()
        return end >= 0 and self._whole_call(end)

    def _in_arguments(self) -> bool:
        end = self._nesting.feed(self._buffer)
        self._take("arguments", len(self._buffer) if end < 0 else end)
        if end < 0:
            return False
        self._state = self._in_garbled if self._nesting.broken else self._in_tail
        return True

    def _in_garbled(self) -> bool:
        """Take arguments that are not JSON: they end at the call's closing marker."""
        found = self._buffer.find(CLOSING)
        sure = certain(self._buffer, (CLOSING,)) if found < 0 else found
        if sure:
            self._take("arguments", sure)
        if found >= 0:
            self._state = self._in_after
        return found >= 0

    def _in_tail(self) -> bool:
        lead = _blank(self._buffer)
        if lead == len(self._buffer):
            return False
        if self._buffer[lead] == "}":  # where it is missing, the call is complete all the same
            self._take("mark", lead + 1)
        self._state = self._in_after
        return True

    def _in_after(self) -> bool:
        buffer = self._buffer
        lead = _blank(buffer)
        rest = buffer[lead : lead + len(CLOSING)]
        if CLOSING.startswith(rest):
            if rest != CLOSING:
                return False
            self._take("mark", lead + len(rest))
        elif rest[0] == "]" and self._in_list:
            self._in_list = False
            self._take("mark", lead + 1)
            return True
        elif rest[0] in ",;{":
            at = lead if rest[0] == "{" else lead + 1 + _blank(buffer, lead + 1)
            if at == len(buffer):
                return False
            if buffer[at] == "{":
                return self._may_be_call(at + 1, at, self._in_head)
        self._in_list = False
        self._quiet = True
        self._state = self._in_text
        return True

    # The actions of the states.

    def _may_be_call(self, mark: int, at: int, state: Callable[[], bool]) -> bool:
        self._mark, self._at, self._state = mark, at, state
        self._nesting, self._seen = Nesting(), at
        return True

    def _no_call(self) -> bool:
        """Treat the opening as text; what follows may still hold a call."""
        self._take(self._no_call_is, self._mark)
        self._in_list = False
        self._quiet = False
        self._state = self._in_text
        return True

    def _plausible(self) -> bool:
        """Whether an incomplete object may still be a call."""
        head = self._buffer[self._at : self._at + HEAD_CHARS]
        key = _FIRST_KEY.match(head)
        if key is None:
            return len(head) < HEAD_CHARS and _FIRST_KEY_BEGINS.fullmatch(head) is not None
        if key[1] not in _KEYS:
            return False
        name = _NAME.match(head)
        return name is None or any(known.startswith(name[1]) for known in self._names)

    def _whole_call(self, end: int) -> bool:
        call = _call_of(self._buffer[self._at : end])
        if call is None or call[0] not in self._names:
            return self._no_call()
        self.num_calls += 1
        self._take("call", end, call[0])
        self._pieces.append(Piece("arguments", call[1], ""))
        self._state = self._in_after
        return True

    def _take(self, kind: str, end: int, text: str | None = None) -> None:
        """Make a piece of the buffer's beginning; neighbours of one kind become one piece."""
        if end == 0:
            return
        raw, self._buffer = self._buffer[:end], self._buffer[end:]
        if text is None:
            text = "" if kind == "mark" else raw
        if kind != "call" and self._pieces and self._pieces[-1].kind == kind:
            last = self._pieces.pop()
            text, raw = last.text + text, last.raw + raw
        self._pieces.append(Piece(kind, text, raw))


def _blank(text: str, start: int = 0) -> int:
    """The number of white space letters at `start`."""
    return len(text) - start - len(text[start:].lstrip())


def _call_of(text: str) -> tuple[str, str] | None:
    """The name, and the arguments as JSON, of an object that is a call."""
    try:
        found: dict[str, Any] = json.loads(text, strict=False)
        name = found["name"]
        arguments = found.get("arguments", found.get("parameters"))
        if isinstance(arguments, str):  # JSON within JSON
            arguments = json.loads(arguments, strict=False)
    except (ValueError, KeyError, RecursionError):
        return None
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments)
