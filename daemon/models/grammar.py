"""Grammars for one model's vocabulary: llguidance's matchers, under limits, the newest kept.

llguidance and the vocabulary are loaded when a `Compiler` is made: plain text needs neither. The
API process checks a grammar with the same limits before a worker ever sees it.
"""

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.models.grammar_words import in_words
from daemon.models.vocabulary import tokenizer_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

BROKEN_OFF = "the grammar cannot be followed further: "
"""Begins the error of an answer whose grammar turns out to be too complex on the way."""
MOST_COMPILED = 32
"""Grammars that stay compiled: an application asks for the same few again and again."""


class GrammarError(ValueError):
    """A grammar cannot be used, or none can; the message says why in one line."""


class Compiler:
    """Makes a matcher for each token stream that follows a grammar."""

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        """Read the folder's tokenizer, about a quarter of a second. Raises GrammarError.

        `vocab_size` is the model's, the width of its logits; the tokenizer may know more or less.
        """
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError as error:
            raise GrammarError(f"a grammar needs llguidance, which is not here: {error}") from None
        self._make = LLMatcher
        # Far below llguidance's defaults: no grammar may hold up a worker's step.
        self._limits = LLParserLimits(
            initial_lexer_fuel=400_000,  # to compile: some tenths of a second
            step_lexer_fuel=150_000,  # for a token: some ten milliseconds
            step_max_items=2000,  # for a token, too; their cost grows with their square
            max_lexer_states=20_000,  # half a kilobyte each
            verbose_errors=False,
        )
        self._tokenizer = _tokenizer(folder, vocab_size, eos_token_ids)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def mask_words(self) -> int:
        """The length of a mask: a bit a token, in int32 words; at least the model's vocabulary."""
        return -(-self._tokenizer.vocab_size // 32)

    @property
    def ends(self) -> npt.NDArray[np.intp]:
        """The tokens that end an answer."""
        return np.array(self._tokenizer.eos_tokens, np.intp)

    def token_lengths(self) -> npt.NDArray[np.intp]:
        """Bytes of every token [vocabulary]; takes some tenths of a second."""
        decode = self._tokenizer.decode_bytes
        return np.array([len(decode([token])) for token in range(self._tokenizer.vocab_size)])

    def matcher(self, grammar: str) -> "LLMatcher":
        """A matcher at a grammar's beginning. Raises GrammarError if it is wrong or too complex.

        Those of one grammar share what they learn of it, its limit on memory included.
        """
        compiled = self._compiled.get(grammar) or self._compile(grammar)
        self._compiled.move_to_end(grammar)
        return compiled.deep_copy()

    def matcher_anew(self, grammar: str) -> "LLMatcher":
        """As `matcher`, but it shares nothing with those made before."""
        return self._compile(grammar).deep_copy()

    def _compile(self, grammar: str) -> "LLMatcher":
        compiled = self._make(self._tokenizer, grammar, log_level=0, limits=self._limits)
        check(compiled)
        self._compiled[grammar] = compiled
        if len(self._compiled) > MOST_COMPILED:
            self._compiled.popitem(last=False)
        return compiled


def check(matcher: "LLMatcher") -> None:
    """Raise GrammarError if a matcher has failed: it cannot go on from there."""
    if matcher.is_error():
        raise GrammarError(in_words(matcher.get_error()))


class _Lengths(msgspec.Struct):
    """Truncation and padding in a tokenizer.json."""

    truncation: Any = None
    padding: Any = None


def _tokenizer(folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> "LLTokenizer":
    from llguidance import LLTokenizer

    ends = list(eos_token_ids) or None
    try:
        text = tokenizer_json(folder).decode()
        lengths = msgspec.json.decode(text, type=_Lengths)
        if lengths.truncation or lengths.padding:
            # Cut or filled, the tokens of what a grammar forces would not spell it.
            plain = msgspec.json.decode(text) | {"truncation": None, "padding": None}
            text = msgspec.json.encode(plain).decode()
        try:
            return LLTokenizer(text, n_vocab=vocab_size, eos_token=ends)
        except ValueError:  # it knows more tokens than the model
            return LLTokenizer(text, eos_token=ends)
    except ValueError as error:
        raise GrammarError(
            f"{folder / 'tokenizer.json'} cannot be used for grammars: {error}"
        ) from error
