"""Incremental search for the end of a JSON object or list."""

import re

_PAIRS = {"{": "}", "[": "]"}
# Outside of strings JSON has brackets, quotes, and the letters of numbers, true, false and null.
_OUTSIDE = re.compile(r"[^\s0-9:,.+\-Eaeflnrstu]")
_INSIDE = re.compile(r'["\\]')


class Nesting:
    """Tracks brackets and strings. `broken`: the text cannot be JSON."""

    def __init__(self) -> None:
        self.broken = False
        self._open: list[str] = []  # the brackets that are to come, innermost last
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int = 0) -> int:
        """Continue with `text[start:]`.

        Returns the index after the last bracket; if the text breaks, the index of the first letter
        that does not fit; else -1.
        """
        at = start
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while found := (_INSIDE if self._in_string else _OUTSIDE).search(text, at):
            at = found.end()
            letter = found[0]
            if letter == "\\" and self._in_string:
                self._escaped = at == len(text)
                at += 1
            elif letter == '"':
                self._in_string = not self._in_string
            elif letter in _PAIRS:
                self._open.append(_PAIRS[letter])
            elif self._open and letter == self._open[-1]:
                self._open.pop()
                if not self._open:
                    return at
            else:
                self.broken = True
                return at - 1
        return -1
