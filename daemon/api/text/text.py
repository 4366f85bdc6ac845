"""A model folder's tokenizer."""

import copy
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.text.markers import marker_tokens
from daemon.api.text.offsets import offsets_of_spans, with_whole_spans
from daemon.api.text.token_bytes import TokenBytes
from daemon.memory.hashing import chain_hashes
from daemon.models.vocabulary import tokenizer_json
from daemon.protocol.api import Serving
from daemon.wire.columns import Int32, int32

EXCERPT_CHARS = 8000
PIECE_LETTERS = 16
"""A text with more letters per token of the context is first counted in pieces. Words have four
letters per token; only runs of one letter have this many.
"""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt for the runtime."""

    tokens: Int32  # [prompt length >= 1]
    hashes: bytes  # of its full blocks
    text: str = ""  # for `echo`
    words: str = ""  # an excerpt for the length predictor, without the template


def excerpt(text: str) -> str:
    """A text's beginning and end, where instructions stand, at most `EXCERPT_CHARS` in all."""
    if len(text) <= EXCERPT_CHARS:
        return text
    half = EXCERPT_CHARS // 2
    return f"{text[:half]}\n{text[-half:]}"


def too_long(param: str, max_len: int, problem: str) -> ApiError:
    """The 400 of a field that does not fit the context; `problem` follows its name."""
    return invalid(
        f"this model's maximum context length is {max_len} tokens, but `{param}` {problem}",
        param,
        "context_length_exceeded",
    )


class Text:
    """A model's tokenizer: text to tokens and back. Its methods may run in any thread."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's files. Raises ValueError."""
        try:
            read = Tokenizer.from_buffer(tokenizer_json(folder))
        except Exception as error:
            raise ValueError(f"{folder / 'tokenizer.json'}: {error}") from error
        self.tokenizer = with_whole_spans(read)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.token_bytes = TokenBytes(self.tokenizer)
        self.markers = marker_tokens(self.tokenizer)
        added = self.tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ValueError(f"{folder / 'tokenizer.json'} has no tokens")
        self.salt = b""
        self._highest = max(vocabulary.values())
        self._longest_token_bytes = max(len(token.encode()) for token in vocabulary)

    def salted(self, salt: bytes) -> "Text":
        """The same, but its prompts' blocks are hashed with this salt."""
        other = copy.copy(self)
        other.salt = salt
        return other

    def prompt(
        self, tokens: Sequence[int], block_size: int, text: str = "", words: str = ""
    ) -> Prompt:
        """The prompt with its block hashes."""
        hashes = chain_hashes(tokens, block_size, self.salt)
        return Prompt(int32(tokens), hashes, text, excerpt(words))

    def decode(self, tokens: Sequence[int], with_special: bool = False) -> str:
        """The text of tokens; special ones have none unless they are asked for."""
        ids = np.asarray(tokens, np.int64).tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not with_special)
        return text

    def hidden(self, shows_special: bool) -> frozenset[int]:
        """The tokens without text in an answer."""
        return frozenset() if shows_special else self._special

    def offsets(self, text: str, special: bool) -> list[int]:
        """The offset of each token in a text, in letters."""
        (encoding,) = self.tokenizer.encode_batch([text], add_special_tokens=special)
        return offsets_of_spans(encoding.offsets)

    def names(self, tokens: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them; empty for an id that no token has."""
        return [self.tokenizer.id_to_token(token) or "" for token in tokens]

    def encode(self, text: str, special: bool, serving: Serving, param: str) -> list[int]:
        """The tokens of a text that comes from the field `param`, with the tokenizer's own special
        tokens around it where `special`: a chat's template writes them itself. Raises ApiError,
        also for a token that the model has no row for.
        """
        max_len = serving.max_len
        num_bytes = len(text.encode())
        # No tokenization can be shorter: refuse before minutes are spent on it.
        if num_bytes > max_len * self._longest_token_bytes:
            raise too_long(param, max_len, f"has {num_bytes} bytes of text, more than fit")
        if len(text) > max_len * PIECE_LETTERS:
            self._count_piecewise(text, max_len, param)
        tokens = self._tokens(text, special)
        if self._highest >= serving.vocab_size:
            self._check_known(tokens, serving.vocab_size, param)
        return tokens

    def _check_known(self, tokens: list[int], vocab_size: int, param: str) -> None:
        """Raise ApiError 400 for a token that the tokenizer has and the model has not."""
        highest = max(tokens, default=0)
        if highest >= vocab_size:
            name = self.tokenizer.id_to_token(highest)
            raise invalid(
                f"`{param}` has the token {name!r} ({highest}), which is beyond this model's "
                f"vocabulary of {vocab_size}",
                param,
            )

    def _count_piecewise(self, text: str, max_len: int, param: str) -> None:
        """Count a long text piece by piece. Raises ApiError 400 as soon as it cannot fit."""
        num_letters, num_tokens = max_len * PIECE_LETTERS, 0
        for begin in range(0, len(text), num_letters):
            num_tokens += len(self._tokens(text[begin : begin + num_letters], False))
            if num_tokens > 2 * max_len:  # split words count twice; they are less than half
                raise too_long(param, max_len, f"has more than {num_tokens // 2} tokens")

    def _tokens(self, text: str, special: bool) -> list[int]:
        # `encode` holds the interpreter's lock; the batch call releases it.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids
