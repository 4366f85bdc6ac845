"""Where tokens begin in a text, in letters."""

from collections.abc import Sequence
from itertools import accumulate

from daemon.api.detokenizer import Detokenizer


def offsets_of_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Where each token begins in a text that was tokenized, in letters; `spans` are what the
    tokenizer says of each: where it begins and ends.

    A token that the text does not have is no letter wide; parts of a letter begin where it does.
    A tokenizer that trims its spans leaves out spaces, which belong to the token behind them.
    """
    offsets, end = [], 0
    for begin, stop in spans:
        offset = end if begin == stop else begin
        while offset > end and text[offset - 1].isspace():
            offset -= 1
        offsets.append(offset)
        end = max(end, stop)
    return offsets


def offsets_of_tokens(text: str, tokens: Sequence[int], detokenizer: Detokenizer) -> list[int]:
    """Where each token begins in the `text` that all of them were decoded to, in letters."""
    ends = list(accumulate((len(detokenizer.push(token)) for token in tokens), initial=0))
    # Some decoders leave out the space before a text's first word.
    left_out = ends.pop() + len(detokenizer.flush()) - len(text)
    return [max(0, begin - left_out) for begin in ends]
