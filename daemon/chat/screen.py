"""The output of a chat: answers to stdout, all else to stderr."""

import os
import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _PLAIN, _ERASE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"


def harmless(text: str) -> str:
    """A foreign text without control characters that a terminal would obey."""
    return _CONTROL.sub("", text)


class Screen:
    """Two streams, each a terminal or not. No control character of a model reaches a terminal."""

    def __init__(self, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> None:
        self._out, self._err = out, err
        self._is_safe = not out.isatty()
        self._tells = err.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._waits = False
        self._thinks = False

    def answer(self, text: str) -> None:
        """Show a piece of an answer at once."""
        self.stop_waiting()
        if self._thinks:
            self._thinks = False
            self._err.write("\n\n")
            self._err.flush()
        self._out.write(text if self._is_safe else harmless(text))
        self._out.flush()

    def think(self, text: str) -> None:
        """Show a piece of the thoughts before an answer, dim, on a terminal alone."""
        self.stop_waiting()
        if self._tells:
            self._thinks = True
            self._err.write(f"{_DIM}{harmless(text)}{_PLAIN}")
            self._err.flush()

    def wait(self, text: str) -> None:
        """Show what the chat waits for, on a terminal, until something else is shown."""
        if self._tells:
            self._waits = True
            self._err.write(f"{_DIM}{text}{_PLAIN}")
            self._err.flush()

    def stop_waiting(self) -> None:
        """Remove the text of `wait`."""
        if self._waits:
            self._waits = False
            self._err.write(_ERASE)
            self._err.flush()

    def tell(self, text: str) -> None:
        """Show a line beside the chat, dim on a terminal."""
        self.stop_waiting()
        line = f"{_DIM}{text}{_PLAIN}" if self._tells else text
        self._err.write(f"{line}\n")
        self._err.flush()
