"""A dozen and a half cheap features of a prompt's text that predict the answer's length."""

import math
import re
from typing import NamedTuple

import numpy as np

from daemon.length_models.prediction import Float32

EDGE_CHARS = 600
"""Characters at both ends in which words are looked for: instructions stand there."""


class _Flag(NamedTuple):
    """1 where the text has one of the words, or one of the phrases anywhere; else 0."""

    name: str
    words: frozenset[str]
    phrases: tuple[str, ...] = ()


def _flag(name: str, words: str, *phrases: str) -> _Flag:
    return _Flag(name, frozenset(words.split()), phrases)


_FLAGS = (
    _flag("question mark", "", "?"),
    _flag("asks who, what, when, where", "who whom whose what when where which"),
    _flag("asks how, why", "how why"),
    _flag("shows code", "", "```", "):\n", ";\n", "{\n", "\nimport ", "#include", "</", "()"),
    _flag("asks for code", "code function program script implement query regex sql python html"),
    _flag(
        "asks for a list",
        "list lists bullet bullets steps ideas examples reasons ways tips outline plan itinerary",
    ),
    _flag(
        "asks for an explanation",
        "explain describe discuss analyze analyse compare elaborate detail detailed details guide"
        " tutorial thorough thoroughly",
        "step by step",
        "step-by-step",
        "in depth",
    ),
    _flag(
        "asks for a story",
        "story stories tale poem essay article letter email blog speech dialogue report write",
    ),
    _flag(
        "asks for brevity",
        "brief briefly short shortly concise concisely only just summary summarize summarise haiku",
        "one word",
        "single word",
        "few words",
        "yes or no",
        "true or false",
        "one sentence",
        "one line",
        "tl;dr",
        "name the",
        "name one",
        "name a",
    ),
    _flag(
        "asks for another wording",
        "translate translation rewrite rephrase paraphrase correct edit proofread convert replace"
        " reverse sort",
    ),
    _flag(
        "reckons",
        "calculate compute solve sum product multiply divide plus minus",
        " + ",
        " * ",
        " × ",
        " ÷ ",
        " = ",
    ),
)

FEATURES = (
    "characters",
    "words",
    "lines",
    "last line",
    "digits",
    "capitals",
    "symbols",
    *(flag.name for flag in _FLAGS),
    "states an amount",
    "amount",
)
"""In this order; each lies between 0 and a few. Change them, and raise `store_file.FORMAT`."""

NUM_FEATURES = len(FEATURES)

_SMALL, _CAPITAL, _DIGIT, _SPACE, _SYMBOL = range(5)
_KINDS = np.full(256, _SMALL, np.uint8)  # of UTF-8 bytes; other scripts count as small
_KINDS[:128] = _SYMBOL
_KINDS[[*b" \t\n\r\v\f"]] = _SPACE
_KINDS[ord("0") : ord("9") + 1] = _DIGIT
_KINDS[ord("A") : ord("Z") + 1] = _CAPITAL
_KINDS[ord("a") : ord("z") + 1] = _SMALL

_WORD = re.compile(r"[a-z]+|[0-9]+")
_NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "fifty": 50,
    "hundred": 100,
}  # fmt: skip
_UNIT_TOKENS = {
    "word": 1.3, "character": 0.25, "sentence": 25.0, "line": 12.0, "verse": 12.0, "stanza": 45.0,
    "paragraph": 100.0, "page": 600.0,
} | dict.fromkeys(
    (
        "item", "idea", "example", "reason", "way", "tip", "step", "question", "fact", "name",
        "point", "bullet", "thing", "recipe", "title", "suggestion", "place", "book", "movie",
        "mistake",
    ),
    20.0,
)  # fmt: skip
_UNIT_REACH = 3  # words after a number among which its unit is looked for: "three short ideas"
_MOST_AMOUNT = 10_000


def features(text: str) -> Float32:
    """[F]: the numbers of `FEATURES` for a prompt, of any length, in tens of microseconds.

    Give the user's words, not the whole conversation and no template: what surrounds them is the
    same in every request and hides them.
    """
    shown = text if len(text) <= 2 * EDGE_CHARS else text[:EDGE_CHARS] + "\n" + text[-EDGE_CHARS:]
    low = shown.lower()
    words = _WORD.findall(low)
    known = set(words)
    raw = np.frombuffer(shown.encode(errors="replace"), np.uint8)
    kinds = np.bincount(_KINDS[raw], minlength=5).tolist()
    size = max(1, raw.size)
    scale = len(text) / max(1, len(shown))  # the rest is taken to have as many words and lines
    last_line = shown.rstrip().rpartition("\n")[2]
    amount = _amount_tokens(words)
    numbers = [
        math.log1p(len(text)) / 4.0,
        math.log1p(len(words) * scale) / 3.0,
        math.log1p(shown.count("\n") * scale) / 2.0,
        math.log1p(len(last_line)) / 3.0,
        4.0 * kinds[_DIGIT] / size,
        4.0 * kinds[_CAPITAL] / size,
        4.0 * kinds[_SYMBOL] / size,
    ]
    for _, flag_words, phrases in _FLAGS:
        raised = not flag_words.isdisjoint(known) or any(phrase in low for phrase in phrases)
        numbers.append(float(raised))
    numbers += [float(amount > 0.0), math.log1p(amount) / 3.0]
    return np.array(numbers, np.float32)


def _amount_tokens(words: list[str]) -> float:
    """Tokens of an amount that is asked for, as "in 50 words" or "five ideas"; 0: none is."""
    for place, word in enumerate(words):
        if word in _NUMBERS or word[0].isdigit():
            number = _NUMBERS.get(word) or min(int(word[:6]), _MOST_AMOUNT)
            for unit in words[place + 1 : place + 1 + _UNIT_REACH]:
                tokens = _UNIT_TOKENS.get(unit) or _UNIT_TOKENS.get(unit.removesuffix("s"))
                if tokens is not None:
                    return number * tokens
    return 0.0
