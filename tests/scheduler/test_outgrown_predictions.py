"""How far answers go beyond what is kept for them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.scheduler.lengths import LEAST_OF_ALL, PRIOR, SeenLengths, outgrown
from daemon.wire.columns import int32
from tests.scheduler.test_lengths import answer


def test_true_predictions_are_outgrown_by_nobody() -> None:
    found = outgrown([1.0] * 20, 0.8)
    assert found == (0.0, 0.0, 0.0)
    assert found.num_tokens(int32([100, 300])) == 0


def test_one_of_ten_that_is_twice_as_long() -> None:
    """Ten take 11 lengths of steps; in the last one the long one holds half a length on average."""
    found = outgrown([1.0] * 9 + [2.0], 0.8)
    assert found.beyond == pytest.approx(0.5 / 11)
    assert found.square == pytest.approx(1 / 3 / 11)
    assert found.margin == 1.0
    one, four = found.num_tokens(int32([100])), found.num_tokens(int32([100] * 4))
    assert one == 39 and four == 86, "errors of several make up for each other"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.floats(0.01, 20.0), min_size=1, max_size=60),
    kept=st.lists(st.integers(0, 2000), max_size=20),
    share=st.floats(0.1, 0.99),
)
def test_what_is_outgrown_is_finite_and_grows_with_those_that_run(
    lengths: list[float], kept: list[int], share: float
) -> None:
    found = outgrown(sorted(lengths), share)
    assert found.beyond >= 0.0 and found.beyond**2 <= found.square + 1e-9 and found.margin >= 0.0
    assert 0 <= found.num_tokens(int32(kept)) <= found.num_tokens(int32([*kept, 50]))
    assert found.beyond <= outgrown(sorted(lengths), share / 2).beyond + 1e-9, "more was kept"


def test_it_follows_the_answers_that_ended() -> None:
    lengths = SeenLengths()
    assert lengths.outgrown(0.8) is PRIOR
    for _ in range(LEAST_OF_ALL):
        lengths.observe(answer(100, 50, predicted=50))
    assert lengths.outgrown(0.8).num_tokens(int32([400])) == 0
    for _ in range(LEAST_OF_ALL // 8):
        lengths.observe(answer(100, 150, predicted=50))
    assert lengths.outgrown(0.8).beyond > 0.0
    assert SeenLengths.restored(lengths.state()).outgrown(0.8) == lengths.outgrown(0.8)


def test_answers_of_which_nothing_was_predicted_count_where_no_others_do() -> None:
    lengths = SeenLengths()
    for number in range(LEAST_OF_ALL):
        lengths.observe(answer(100, 10 + number))
    assert lengths.outgrown(0.5).beyond > 0.0
