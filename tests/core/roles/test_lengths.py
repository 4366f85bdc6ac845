"""Lengths of answers, of which some have not ended: worked by hand, and against what is true."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.roles.kaplan_meier import likely_answers

ANSWERS = st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 1000)), min_size=1, max_size=60)


def test_an_open_answer_says_that_it_is_longer() -> None:
    """Ends at 10, 30 and 40, one open at 20: 1/4 end at 10, half of the rest at 30, and at 40."""
    answers, mean = likely_answers([(1, 10), (3, 30), (4, 40)], [(2, 20)], 8)
    assert mean == pytest.approx(10 / 4 + 30 * 3 / 8 + 40 * 3 / 8)
    assert answers == [(1, 10)] * 2 + [(3, 30)] * 3 + [(4, 40)] * 3


def test_what_survives_all_ends_goes_on_as_if_memoryless() -> None:
    """One of two ended: 15 + 25 tokens were drawn for one end, so that 40 more are expected."""
    answers, mean = likely_answers([(7, 15)], [(9, 25)], 4)
    assert mean == pytest.approx(15 / 2 + (15 + 40) / 2)
    assert answers[:2] == [(7, 15)] * 2
    half = 1 - np.log(2)  # the mean of -ln(u) over the upper half of 0 to 1 is 2 x (1 / 2 - half)
    assert [tokens for _, tokens in answers[2:]] == [
        round(15 + 40 * half),
        round(15 + 40 * (2 - half)),
    ]


def test_an_answer_is_the_mean_of_its_part() -> None:
    """Halves of four: 10 and 20 tokens, then 30 and 90; a row sees a long answer's prompt more."""
    answers, _ = likely_answers([(6, 10), (3, 20), (4, 30), (8, 90)], [], 2)
    assert answers == [((6 * 10 + 3 * 20) // 30, 15), ((4 * 30 + 8 * 90) // 120, 60)]


@given(ANSWERS, ANSWERS)
def test_parts_keep_what_rows_attend_to(
    ended: list[tuple[int, int]], unended: list[tuple[int, int]]
) -> None:
    """The mean of prompt times length of few parts is that of many, but for what is rounded."""

    def seen(count: int) -> float:
        answers, _ = likely_answers(ended, unended, count)
        return sum(prompt * tokens for prompt, tokens in answers) / count

    longest = max(prompt + tokens for prompt, tokens in ended + unended)
    assert seen(8) == pytest.approx(seen(512), rel=0.02, abs=longest)


@given(ANSWERS)
def test_without_open_answers_they_are_as_they_were(ended: list[tuple[int, int]]) -> None:
    answers, mean = likely_answers(ended, [], len(ended))
    lengths = [tokens for _, tokens in ended]
    assert mean == pytest.approx(sum(lengths) / len(lengths))
    assert sorted(tokens for _, tokens in answers) == sorted(lengths)


@given(ANSWERS, ANSWERS, st.integers(1, 64))
def test_open_answers_make_lengths_no_shorter(
    ended: list[tuple[int, int]], unended: list[tuple[int, int]], count: int
) -> None:
    alone, mean_alone = likely_answers(ended, [], count)
    answers, mean = likely_answers(ended, unended, count)
    assert len(answers) == count
    assert mean >= mean_alone - 1e-6
    assert [one[1] for one in answers] == sorted(one[1] for one in answers)
    assert all(one[1] >= other[1] for one, other in zip(answers, alone, strict=True))


@pytest.mark.parametrize("shape", ["exponential", "even", "lognormal"])
def test_a_young_load_is_told_as_it_is(shape: str) -> None:
    """Answers of 250 tokens on average, of which up to 500 could be drawn by now."""
    chance = np.random.default_rng(5)
    draw = {
        "exponential": lambda: chance.exponential(250.0, 2000),
        "even": lambda: chance.uniform(50.0, 450.0, 2000),
        "lognormal": lambda: chance.lognormal(np.log(250.0) - 0.32, 0.8, 2000),
    }[shape]
    true = np.maximum(1.0, draw())
    drawn = np.linspace(0.0, 500.0, true.size)  # if all were long enough
    ended = [(10, int(one)) for one in true[true <= drawn]]
    unended = [(10, int(one)) for one in drawn[true > drawn]]
    _, mean = likely_answers(ended, unended, 64)
    short = np.mean([tokens for _, tokens in ended])
    assert short < 0.9 * true.mean()
    assert mean == pytest.approx(true.mean(), rel=0.1)


@given(ANSWERS, ANSWERS, st.integers(2, 5))
def test_one_may_stand_for_several(
    ended: list[tuple[int, int]], unended: list[tuple[int, int]], each: int
) -> None:
    answers, mean = likely_answers(ended, unended, 16, each)
    repeated, repeated_mean = likely_answers(ended * each, unended, 16)
    assert mean == pytest.approx(repeated_mean)
    pairs = zip(answers, repeated, strict=True)
    assert all(abs(one[1] - other[1]) <= 1 for one, other in pairs)  # means are rounded
