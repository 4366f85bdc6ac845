"""The markers that models write around calls of tools, and a tokenizer's tokens for them."""

import msgspec
from tokenizers import Tokenizer

OPENING, CLOSING, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
MARKERS = (OPENING, CLOSING, PYTHON)
"""The markers that the parser finds; many tokenizers have one token for each."""


class MarkerTokens(msgspec.Struct, frozen=True):
    """The tokens of a tokenizer that matter for calls."""

    ids: dict[str, int]  # of markers that are one token
    hidden: dict[int, str]  # markers that decoding leaves out
    others: tuple[int, ...]  # further added tokens that belong to an answer's text: <think>, ...

    def below(self, vocab_size: int) -> "MarkerTokens":
        """Those within a model's vocabulary size."""
        return MarkerTokens(
            {text: number for text, number in self.ids.items() if number < vocab_size},
            {number: text for number, text in self.hidden.items() if number < vocab_size},
            tuple(number for number in self.others if number < vocab_size),
        )


def marker_tokens(tokenizer: Tokenizer) -> MarkerTokens:
    """The markers among a tokenizer's added tokens."""
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
