"""Answers that repeat themselves for ever are ended; those that only repeat a lot are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.answer.repetition import (
    FEW_TOKENS,
    FEW_TOKENS_FACTOR,
    MAX_PERIOD,
    RepetitionDetector,
)
from daemon.config.schema import ServerConfig
from tests.soak import tries

MOST = ServerConfig().max_repeated_tokens
EACH = 16
"""Tokens of a block."""


def found_at(tokens: list[int], most: int = MOST, each: int = EACH) -> int | None:
    """After how many tokens they are found to repeat themselves."""
    detector = RepetitionDetector(most)
    for begin in range(0, len(tokens), each):
        if detector.push(tokens[begin : begin + each]):
            return min(begin + each, len(tokens))
    return None


def repeated(tokens: list[int]) -> dict[int, int]:
    """By definition: of each period, how many of the last tokens equal the one that far before."""
    row = np.asarray(tokens)
    counts = {}
    for period in range(1, min(MAX_PERIOD, len(tokens) - 1) + 1):
        unequal = np.flatnonzero(row[period:] != row[:-period])
        size = len(tokens) - period
        counts[period] = size - 1 - int(unequal[-1]) if len(unequal) else size
    return counts


def due(tokens: list[int], most: int, late: int) -> tuple[bool, bool]:
    """Whether they may be found to repeat themselves, and whether they must."""
    may = must = False
    for period, count in repeated(tokens).items():
        few = len(set(tokens[-period:])) <= FEW_TOKENS
        allowed = max(most * FEW_TOKENS_FACTOR if few else most, MAX_PERIOD)
        may = may or count >= allowed
        must = must or count >= allowed + late
    return may, must


PIECES = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=MAX_PERIOD + 20),
    st.integers(1, MAX_PERIOD + 20).map(lambda size: list(range(size))),
    # Much of one token, then another: its inside repeats itself, too.
    st.tuples(st.integers(1, MAX_PERIOD), st.integers(0, 30)).map(
        lambda counts: [0] * counts[0] + list(range(counts[1]))
    ),
)


@st.composite
def answers(draw: st.DrawFn) -> list[int]:
    """Pieces, each some times, perhaps broken off."""
    tokens: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        piece = draw(PIECES)
        count = draw(st.integers(1, 1600))
        tokens += (piece * (count // len(piece) + 2))[:count]
        if draw(st.booleans()):
            tokens[draw(st.integers(0, len(tokens) - 1))] = 3
    return tokens


@settings(max_examples=tries(60, 2000), deadline=None)
@given(
    tokens=answers(),
    most=st.sampled_from([MAX_PERIOD, 300, 512]),
    each=st.sampled_from([1, 7, 16, 300]),
)
def test_it_is_what_brute_force_finds(tokens: list[int], most: int, each: int) -> None:
    """At most two blocks late, and never early."""
    found = found_at(tokens, most, each)
    if found is not None:
        assert due(tokens[:found], most, 0)[0]
    before = tokens[: found - 1 if found is not None else len(tokens)]
    for end in range(len(before), 0, -211):
        assert not due(before[:end], most, 2 * each)[1]


def test_brute_force_knows_a_repetition() -> None:
    assert repeated([5, 1, 2, 1, 2, 1])[2] == 3
    phrase = list(range(30)) * 40
    assert due(phrase[: 30 + 512], 512, 0) == (True, True)
    assert due(phrase[: 30 + 511], 512, 0) == (False, False)


@pytest.mark.parametrize("period", [9, 40, 200, MAX_PERIOD])
def test_a_phrase_is_found_soon_after_the_bound(period: int) -> None:
    before = list(range(1000, 1700))
    tokens = before + list(range(period)) * (2 * MOST // period)
    found = found_at(tokens)
    assert found is not None
    assert MOST <= found - len(before) - period <= MOST + 2 * EACH


def test_one_other_token_begins_the_count_anew() -> None:
    phrase = list(range(20))
    almost = (phrase * (MOST // 20))[:MOST]
    assert found_at([*almost, 99, *almost]) is None


FAIR = [
    ("the word owl", 1, 1, 1000),
    ("the word owl and a comma", 2, 2, 1000),
    ("a table's row of ten zeros", 32, 5, 100),
    ("a matrix' row of 32 zeros", 97, 8, 32),
    ("a row of 40 zeros", 80, 3, 45),
    ("a ruler of 80 dashes", 3, 3, 140),
    ("a ruler with marks", 33, 3, 20),
    ("a line of code", 7, 7, 200),
    ("a sentence", 10, 10, 100),
    ("a table's row of words", 18, 15, 60),
]
"""What may be repeated: its tokens and the different ones of them, as the embedded model writes it,
and how often an answer may well have it.
"""


@pytest.mark.parametrize(
    ("num_tokens", "num_different", "times"),
    [case[1:] for case in FAIR],
    ids=[case[0] for case in FAIR],
)
def test_what_repeats_for_a_reason_is_not_cut(
    num_tokens: int, num_different: int, times: int
) -> None:
    piece = [index % num_different for index in range(num_tokens)]
    assert found_at(piece * times) is None


@pytest.mark.parametrize("num_tokens", [1, 2, 3, FEW_TOKENS])
def test_even_few_tokens_are_not_repeated_for_ever(num_tokens: int) -> None:
    found = found_at(list(range(num_tokens)) * 20_000)
    assert found is not None and found <= FEW_TOKENS_FACTOR * MOST + num_tokens + 2 * EACH
