"""The markers that models write around calls of tools, and a tokenizer's tokens for them."""

import msgspec
from tokenizers import Tokenizer

OPENING, CLOSING, PYTHON = "<tool_call>", "</tool_call>", "<|python_tag|>"
THOUGHT_OPENING, THOUGHT_CLOSING = "<think>", "</think>"
CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
MESSAGE_END, ANSWER_END, CALL_END, MESSAGE_START = "<|end|>", "<|return|>", "<|call|>", "<|start|>"
MESSAGE_ENDS = (MESSAGE_END, ANSWER_END, CALL_END, MESSAGE_START, CHANNEL)
"""The markers of gpt-oss's channels: a message's header begins, its body begins, and ends."""
TURN_THOUGHT, TURN_THOUGHT_ENDS = "<|channel>", "<channel|>"
TURN_CALL, TURN_CALL_ENDS = "<|tool_call>", "<tool_call|>"
TURN_RESULT, TURN_QUOTE = "<|tool_response>", '<|"|>'
"""The markers of Gemma 4's turns: around thoughts, around calls, before a result, around texts."""
_OF_THOUGHTS = frozenset(
    {
        *(THOUGHT_OPENING, THOUGHT_CLOSING, MESSAGE, *MESSAGE_ENDS),
        *(TURN_THOUGHT, TURN_THOUGHT_ENDS, TURN_CALL, TURN_CALL_ENDS, TURN_RESULT, TURN_QUOTE),
    }
)
MARKERS = (OPENING, CLOSING, PYTHON)
"""The markers that the parser finds; many tokenizers have one token for each."""


class MarkerTokens(msgspec.Struct, frozen=True):
    """The tokens of a tokenizer that matter for calls."""

    ids: dict[str, int]  # of markers that are one token
    hidden: dict[int, str]  # markers that decoding leaves out
    others: tuple[int, ...]  # further added tokens that belong to an answer's text: <think>, ...
    thoughts: frozenset[int] = frozenset()  # of thoughts and turns, that decoding leaves out
    channels: dict[str, int] = {}  # of markers of gpt-oss's channels that are one token

    def below(self, vocab_size: int) -> "MarkerTokens":
        """Those within a model's vocabulary size."""
        return MarkerTokens(
            {text: number for text, number in self.ids.items() if number < vocab_size},
            {number: text for number, text in self.hidden.items() if number < vocab_size},
            tuple(number for number in self.others if number < vocab_size),
            frozenset(number for number in self.thoughts if number < vocab_size),
            {text: number for text, number in self.channels.items() if number < vocab_size},
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
        thoughts=frozenset(
            number
            for number, token in added.items()
            if token.special and token.content in _OF_THOUGHTS
        ),
        channels={
            token.content: number
            for number, token in added.items()
            if token.special and token.content in (MESSAGE, CONSTRAIN, *MESSAGE_ENDS)
        },
    )


def certain(text: str, markers: tuple[str, ...]) -> int:
    """The number of letters of a text that cannot begin a marker; all of them begin with `<`."""
    start = text.rfind("<", max(0, len(text) - max(map(len, markers)) + 1))
    if start >= 0 and any(marker.startswith(text[start:]) for marker in markers):
        return start
    return len(text)
