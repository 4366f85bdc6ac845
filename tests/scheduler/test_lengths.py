"""What an instance learns of answers' lengths, by kind."""

import math

import numpy as np
import pytest

from daemon.scheduler.lengths import GUESS_TOKENS, LEAST, WINDOW, SeenLengths
from daemon.state.sequence import Sequence


def answer(
    num_prompt_tokens: int, num_tokens: int, predicted: int = -1, most: int = 4096
) -> Sequence:
    """A sequence with so many tokens of its answer."""
    return Sequence(
        id=0,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=most,
        priority=0,
        arrived_s=0.0,
        arrival=0,
        num_output_tokens=num_tokens,
        predicted_tokens=predicted,
    )


def test_before_anything_ended_all_are_alike() -> None:
    """So that the first comes first."""
    lengths = SeenLengths()
    one, other = lengths.outlook(answer(30, 0)), lengths.outlook(answer(300, 0, predicted=7))
    assert one == other and one.span_tokens == GUESS_TOKENS


def test_kinds_of_prompts_are_told_apart_once_enough_have_ended() -> None:
    lengths = SeenLengths()
    for _ in range(LEAST):
        lengths.observe(answer(100, 20))
        lengths.observe(answer(1000, 400))
    assert lengths.outlook(answer(100, 0)).span_tokens == pytest.approx(20.0)
    assert lengths.outlook(answer(1000, 0)).span_tokens == pytest.approx(400.0)
    unknown = lengths.outlook(answer(5, 0)).span_tokens
    assert unknown == pytest.approx(20.0), "as all: half of them end there"


def test_exact_predictions_are_taken_at_their_word() -> None:
    lengths = SeenLengths()
    for number in range(2 * LEAST):
        lengths.observe(answer(100, 64 + number % 64, predicted=64 + number % 64))
    for predicted in (70, 120):
        outlook = lengths.outlook(answer(100, 20, predicted))
        assert outlook.span_tokens == pytest.approx(predicted - 20)


def test_predictions_that_mean_nothing_change_nothing() -> None:
    """Whatever is predicted, the same lengths follow, and the same order is learned."""
    chance = np.random.default_rng(0)
    lengths = SeenLengths()
    for _ in range(4000):
        predicted = 2 ** int(chance.integers(5, 9))
        lengths.observe(answer(100, int(math.exp(chance.normal(5.0, 0.3))), predicted))
    spans = [lengths.outlook(answer(100, 0, 2**power)).span_tokens for power in range(5, 9)]
    assert max(spans) < 1.25 * min(spans)


def test_a_limit_bounds_what_is_expected() -> None:
    lengths = SeenLengths()
    for _ in range(LEAST):
        lengths.observe(answer(100, 500))
    outlook = lengths.outlook(answer(100, 30, most=40))
    assert outlook.span_tokens == 10.0
    assert outlook.gittins_index == 10.0 * 40.0


def test_answers_that_were_cut_count_as_longer() -> None:
    cut, whole = SeenLengths(), SeenLengths()
    for number in range(LEAST):
        cut.observe(answer(100, 100, most=100 if number % 2 else 4096))
        whole.observe(answer(100, 100))
    age = answer(100, 90)
    assert cut.outlook(age).gittins_index > 1.5 * whole.outlook(age).gittins_index


def test_what_was_learned_can_be_written_down_and_goes_on_the_same() -> None:
    chance = np.random.default_rng(1)
    lengths = SeenLengths()
    ends = [
        answer(int(2 ** chance.uniform(3, 9)), int(chance.integers(1, 500))) for _ in range(333)
    ]
    for one in ends[:300]:
        lengths.observe(one)
        lengths.outlook(one)
    again = SeenLengths.restored(lengths.state())
    for one in ends[300:]:
        assert again.outlook(one) == lengths.outlook(one)
        lengths.observe(one)
        again.observe(one)
    assert again.state() == lengths.state()


def test_what_is_left_is_the_mean_of_those_that_are_as_old() -> None:
    lengths = SeenLengths()
    chance = np.random.default_rng(1)
    ends = chance.integers(1, 400, 400)
    for end in ends.tolist():
        lengths.observe(answer(100, end))
    for age in (0, 150):
        longer = ends[ends >= age]
        left = lengths.left(answer(100, age))
        work = (longer - age).mean() * (100 + age) + ((longer - age) ** 2).mean() / 2
        assert left.steps == pytest.approx((longer - age).mean(), rel=0.05)
        assert left.work == pytest.approx(work, rel=0.05)


def test_no_more_is_left_than_the_limit_allows() -> None:
    lengths = SeenLengths()
    for _ in range(LEAST):
        lengths.observe(answer(100, 400))
    assert lengths.left(answer(100, 10, most=50)) == (40, 40 * 110 + 40 * 40 // 2)
    assert lengths.left(answer(100, 900)).steps >= 1, "older than any that was seen"


def test_before_anything_ended_what_is_left_is_a_guess() -> None:
    assert SeenLengths().left(answer(30, 0)).steps == GUESS_TOKENS


def test_an_answer_that_was_predicted_to_be_empty_is_counted_once() -> None:
    """A restored instance counts those that it remembers."""
    lengths = SeenLengths()
    for _ in range(LEAST - 1):
        lengths.observe(answer(100, 20, predicted=0))
    again = SeenLengths.restored(lengths.state())
    assert not lengths.any_known and not again.any_known
    assert all(len(kind.answers) == LEAST - 1 for kind in lengths.state())


def test_the_padding_is_what_predictions_were_wrong_by() -> None:
    lengths = SeenLengths()
    assert lengths.padded(answer(100, 0, predicted=80), 0, 0.75) == 80, "nothing is known yet"
    for number in range(WINDOW + 100):  # up to half as long again as was predicted
        lengths.observe(answer(100, 100 + number % 50, predicted=100))
    assert lengths.padded(answer(100, 0, predicted=80), 0, 0.0) == 80
    assert lengths.padded(answer(100, 0, predicted=80), 0, 0.5) == 100
    assert lengths.padded(answer(100, 0, predicted=80, most=90), 0, 0.5) == 90
    assert lengths.padded(answer(100, 0, predicted=100), 125, 0.5) == 138, "of those left"
    assert lengths.padded(answer(100, 0, predicted=100), 149, 0.5) == 298, "none was longer"
    kind = lengths._kinds[(-1, 7)]
    assert list(kind._sorted) == sorted(length for length, _ in kind.answers)
    again = SeenLengths.restored(lengths.state())
    assert again._kinds[(-1, 7)]._sorted == kind._sorted
