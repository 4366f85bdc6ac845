"""The offsets of tokens in a text, in letters."""

from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Tokenizer

from daemon.api.text.detokenizer import Detokenizer


def with_whole_spans(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer`, changed so that its spans are not trimmed: spaces belong to their token."""
    processor = tokenizer.post_processor
    if processor is not None:
        state: bytes = processor.__getstate__()
        processor.__setstate__(state.replace(b'"trim_offsets":true', b'"trim_offsets":false'))
        tokenizer.post_processor = processor
    return tokenizer


def offsets_of_spans(spans: Sequence[tuple[int, int]]) -> list[int]:
    """The offset of each token of a tokenized text, in letters, from the tokenizer's `spans`
    (begin, end).

    A token outside the text has no width; the parts of a letter begin where it does.
    """
    offsets, end = [], 0
    for begin, stop in spans:
        offsets.append(end if begin == stop else begin)
        end = max(end, stop)
    return offsets


def offsets_of_tokens(text: str, tokens: Sequence[int], detokenizer: Detokenizer) -> list[int]:
    """The offset of each token in the `text` that all of them decode to, in letters."""
    ends = list(accumulate((len(detokenizer.push(token)) for token in tokens), initial=0))
    # Some decoders leave out the space before a text's first word.
    left_out = ends.pop() + len(detokenizer.flush()) - len(text)
    return [max(0, begin - left_out) for begin in ends]
