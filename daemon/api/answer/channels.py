"""Answers in messages of channels, as gpt-oss writes them: thoughts, calls and words apart.

A message is `<|channel|>NAME<|message|>TEXT`, and ends where the next one begins. Those of the
channel `analysis` are thoughts. One to a function (`to=functions.NAME` in its header) is a call,
and is passed on in the form that `CallReader` reads. All others belong to the answer.
"""

import json
import re

from daemon.api.answer.thoughts import ThoughtSplit
from daemon.api.text.markers import CHANNEL, CLOSING, MESSAGE, MESSAGE_ENDS, OPENING, certain

_TO = "to="
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


class ChannelReader:
    """The reader of one answer in channels; `names`: of the functions that it may call, which it
    does once if not `several` calls are wanted.
    """

    def __init__(self, names: frozenset[str] = frozenset(), several: bool = True) -> None:
        self._names = names
        self._several = several
        self._state = "opening"
        self._buffer = ""  # not certain yet
        self._is_thought = False
        self._call = ""  # of a call that is being read: "named", then "written" with arguments
        self._name = ""  # of the function that a message is to

    def push(self, text: str) -> ThoughtSplit:
        """Take more text."""
        if self._state == "over":
            return ThoughtSplit("", "")
        self._buffer += text
        thought = answer = ""
        goes_on = True
        while self._buffer and goes_on:
            if self._state != "body":
                goes_on = self._begin()
                continue
            said, goes_on = self._read()
            if self._is_thought:
                thought += said
            else:
                answer += self._passed_on(said, ended=goes_on)
                goes_on = goes_on and self._state != "over"
        return ThoughtSplit(thought, answer)

    def finish(self) -> ThoughtSplit:
        """Take the end: what is left of a message belongs to it, of a header to neither side."""
        rest, self._buffer = self._buffer, ""
        if self._state in ("header", "over"):
            return ThoughtSplit("", "")
        if self._is_thought:
            return ThoughtSplit(rest, "")
        if self._call == "named" and not rest.strip():
            rest = "{}"
        return ThoughtSplit("", self._passed_on(rest, ended=False))  # it may have been cut

    def _begin(self) -> bool:
        """Find the body of a message; an answer without any header is one."""
        if self._state == "opening":
            begun = self._buffer.lstrip()
            if any(marker.startswith(begun) for marker in (*MESSAGE_ENDS, _TO)):
                return False
            self._state = "header" if begun.startswith((*MESSAGE_ENDS, _TO)) else "body"
            return True
        header, marker, rest = self._buffer.partition(MESSAGE)
        if not marker:
            return False
        function = _FUNCTION.search(header)
        self._name = function[1] if function is not None else ""
        self._call = "named" if self._name in self._names else ""
        channel = header.rpartition(CHANNEL)[2].strip()
        self._is_thought = not self._call and channel.startswith("analysis")
        self._state, self._buffer = "body", rest
        return True

    def _read(self) -> tuple[str, bool]:
        """The certain part of a body, and whether the next header follows."""
        buffer = self._buffer
        ends = [at for marker in MESSAGE_ENDS if (at := buffer.find(marker)) >= 0]
        if ends:
            self._state, self._buffer = "header", buffer[min(ends) :]
            return buffer[: min(ends)], True
        sure = certain(buffer, MESSAGE_ENDS)
        self._buffer = buffer[sure:]
        return buffer[:sure], False

    def _passed_on(self, text: str, ended: bool) -> str:
        """The text of an answer, or a part of a call; `ended`: nothing of the message follows."""
        if not self._call:
            return text
        if self._call == "named":
            text = text.lstrip()
            if not text and not ended:
                return ""
            name = json.dumps(self._name)
            text = f'{OPENING}{{"name": {name}, "arguments": {text or "{}"}'
            self._call = "written"
        if ended:
            self._call = ""
            self._state = self._state if self._several else "over"
            text += f"}}{CLOSING}"
        return text
