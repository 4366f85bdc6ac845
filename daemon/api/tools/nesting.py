"""Where a JSON object or list ends, found while its text comes in."""

import re

_PAIRS = {"{": "}", "[": "]"}
# Outside of strings JSON has brackets, quotes, and the letters of numbers, true, false and null.
_OUTSIDE = re.compile(r"[^\s0-9:,.+\-Eaeflnrstu]")
_INSIDE = re.compile(r'["\\]')


class Nesting:
    """Follows brackets and strings. `broken`: it can be no JSON any more."""

    def __init__(self) -> None:
        self.broken = False
        self._open: list[str] = []  # the brackets that are to come, innermost last
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int = 0) -> int:
        """Go on with `text[start:]`.

        Gives the index after the last bracket; where the text breaks, the index of the first letter
        that does not fit; -1 where neither has come.
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
