"""Grammars for one model's vocabulary: llguidance's matchers, under limits, the newest kept.

llguidance and the vocabulary are loaded when a `Compiler` is made: plain text needs neither. The
API process checks a grammar with the same limits before a worker ever sees it.
"""

import re
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.models.vocabulary import tokenizer_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

BROKEN_OFF = "the grammar cannot be followed further: "
"""Begins the error of an answer whose grammar turns out to be too complex on the way."""
MOST_COMPILED = 32
"""Grammars that stay compiled: an application asks for the same few again and again."""

_LONGEST_MESSAGE = 300
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_SOURCE = re.compile(r" \d+ \| .*", re.DOTALL)
"""The faulty lines, which the client has: in a single line with the message they are unreadable."""
_IN_WORDS = {
    "NoExtension": "nothing may follow what the answer has so far",
    "NoExtensionBias": "there is no text that it allows",
    "ParserTooComplex": "it is too complex to follow",
    "LexerTooComplex": "it is too complex to follow",
    "InternalError": "it cannot be followed",
    "Empty grammar": "it is empty",
    "empty grammars array": "it is empty",
}
"""Half sentences of llguidance, and names of its stop reasons where it says nothing else."""
_TOO_COMPLEX = re.compile(r"^(?:lexer|parser) error: (.*)")
_NO_SYMBOL = re.compile(r"^(line \d+, column \d+): lexer error$")
_RANGE = re.compile(
    r"Failed to generate regex for (?:integer|float) range: min=(\w+)(?:\((.*?)\))?, "
    r"max=(\w+)(?:\((.*?)\))?"
)
_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")
_NO_REGEX = re.compile(r"regex parse error: .*error: (.*)")
_REWRITTEN = (
    (re.compile(r"oneOf constraints are not supported.*"), "`oneOf` cannot be followed where "
     "several of its branches might fit the same text; use `anyOf`"),
    (re.compile(r"Expected f64 for '(.*?)', got (.*)"), r"`\1` must be a number, and is \2"),
    (re.compile(r"Expected positive integer for '(.*?)', got (.*)"),
     r"`\1` must be a whole number, 0 or more, and is \2"),
    (re.compile(r"Expected (array|object|string) for '(.*?)'( item)?, got (.*)"),
     r"`\2`\3 must be of type \1, and is \4"),
    (re.compile(r"Value for 'multipleOf' has too many digits: (.*)"),
     r"`multipleOf` has too many digits: \1"),
    (re.compile(r"Unsatisfiable schema: (.*)"), r"nothing fits the schema: \1"),
    (re.compile(r"circular references with sibling keys are not supported.*"),
     "a `$ref` leads back to its own place, and cannot be followed there"),
    (re.compile(r"failed to compile JSON schema: (.*)"), r"\1"),
    (re.compile(r"invalid regex \".*\" \(in regex\): (the regular expression .*)"), r"\1"),
)  # fmt: skip
"""Sentences of llguidance that name its own parts or options."""


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


def in_words(said: str) -> str:
    """llguidance's message about a grammar, in a line of plain words."""
    said = " ".join(said.replace("<non-verbose/>", "").split())
    said = _PLACE.sub(r"line \1, column \2: ", _SOURCE.sub("", said))
    said = _TOO_COMPLEX.sub(r"it is too complex to follow: \1", said)
    said = _NO_SYMBOL.sub(r"what stands at \1 begins no symbol", said)
    said = _IN_WORDS.get(said, said)
    said = _RANGE.sub(_of_range, said)
    said = _UNKNOWN_KEYS.sub(_of_keywords, said)
    said = _NO_REGEX.sub(r"the regular expression cannot be read: \1", said)
    for pattern, words in _REWRITTEN:
        said = pattern.sub(words, said)
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]} ..."


def _of_range(found: re.Match[str]) -> str:
    least, most = (found[2], found[4])
    bounds = [f"`minimum` {least}"] * bool(least) + [f"`maximum` {most}"] * bool(most)
    return f"numbers cannot be held to {' and '.join(bounds)}: too many digits"


def _of_keywords(found: re.Match[str]) -> str:
    names = ", ".join(f"`{name.strip().strip(chr(34))}`" for name in found[1].split(","))
    return f"the schema has keywords that cannot be followed: {names}"


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
