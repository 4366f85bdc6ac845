"""From tokens to text, one token at a time."""

import codecs
from collections.abc import Container

from daemon.api.text.token_bytes import TokenBytes

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence's output; hidden tokens have none.

    A token costs the same whatever came before it. Bytes that are no letter, and cannot become one
    with later bytes, are shown as U+FFFD at once.
    """

    def __init__(self, token_bytes: TokenBytes, hidden: Container[int]) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden
        self._decode = _utf8("replace").decode

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a letter is not whole."""
        return "" if token in self._hidden else self._decode(self._token_bytes(token))

    def flush(self) -> str:
        """The text of an unfinished letter at the end."""
        return self._decode(b"", True)
