"""The bytes behind single tokens, for logprobs."""

import re

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>$")


def _byte_by_letter() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable bytes stand for themselves, others move up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """Looks up, and keeps, what a token adds to the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = _byte_by_letter()
        self._byte_level = "ByteLevel" in repr(tokenizer.decoder)
        self._added = frozenset(tokenizer.get_added_tokens_decoder())
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        """The token's bytes; empty for an id that no token has."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._look_up(token)
        return known

    def _look_up(self, token: int) -> bytes:
        piece: str | None = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._added:
            return piece.encode()
        if self._byte_level and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece)
        byte = _BYTE_TOKEN.match(piece)
        if byte:
            return bytes([int(byte.group(1), 16)])
        return piece.replace("\u2581", " ").encode()
