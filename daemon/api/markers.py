"""The markers that models write around calls of tools, and a tokenizer's tokens for them."""

import msgspec
from tokenizers import Tokenizer

OPENING, CLOSING, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
MARKERS = (OPENING, CLOSING, PYTHON)
"""What the parser looks for; many tokenizers have one token for each."""


class MarkerTokens(msgspec.Struct, frozen=True):
    """Tokens of a tokenizer that bear on calls."""

    ids: dict[str, int]  # of markers that are one token
    hidden: dict[int, str]  # markers that decoding would leave out
    others: tuple[int, ...]  # further added tokens that belong to an answer's text: <think>, ...


def marker_tokens(tokenizer: Tokenizer) -> MarkerTokens:
    """Look a tokenizer's added tokens through."""
    added = tokenizer.get_added_tokens_decoder()
    return MarkerTokens(
        ids={token.content: number for number, token in added.items() if token.content in MARKERS},
        hidden={
            number: token.content
            for number, token in added.items()
            if token.special and token.content in MARKERS
        },
        others=tuple(
            number
            for number, token in sorted(added.items())
            if not token.special and token.content not in MARKERS
        ),
    )
