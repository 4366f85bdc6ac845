"""The bytes that single tokens add to a text."""

import re
import string

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>$")
_REPLACEMENT = "\ufffd"


def _byte_by_letter() -> dict[str, int]:
    """The byte-level alphabet of GPT-2: printable bytes are themselves, others are shifted up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """The bytes that each token adds in the middle of a text, looked up once.

    The tokenizer's own decoder decodes a token between two plain ones: so every rule about single
    tokens is followed (spaces, word pieces, added tokens). Tokens with parts of letters have no
    text of their own; their bytes come from the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = _byte_by_letter()
        self._byte_level = "ByteLevel" in repr(tokenizer.decoder)
        self._anchor = _anchor(tokenizer)
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
        text = self._text(token)
        if text is not None and _REPLACEMENT not in text:
            return text.encode()
        if self._byte_level and all(letter in self._letters for letter in piece):
            return bytes(self._letters[letter] for letter in piece)
        byte = _BYTE_TOKEN.match(piece)
        if byte:
            return bytes([int(byte.group(1), 16)])
        return piece.replace("\u2581", " ").encode()

    def _text(self, token: int) -> str | None:
        """The decoder's text of a token between two others; None where that is unclear."""
        if self._anchor is None:
            return None
        before, after = self._anchor, self._anchor
        alone = self._decode(before)
        behind = self._decode(before, after).removeprefix(alone)
        whole = self._decode(before, token, after)
        if not (whole.startswith(alone) and whole.endswith(behind)):
            return None
        return whole[len(alone) : len(whole) - len(behind)]

    def _decode(self, *tokens: int) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def _anchor(tokenizer: Tokenizer) -> int | None:
    """A token of one plain letter, to put around others."""
    found = (tokenizer.token_to_id(letter) for letter in string.ascii_letters)
    return next((token for token in found if token is not None), None)
