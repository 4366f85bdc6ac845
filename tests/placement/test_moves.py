"""Moves lessen the errors of both instances, and nothing goes back."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.placement.rebalance import MOST_MOVES, PlanError, moves
from tests.placement.made import model

errors = st.floats(-1.0, 1.0)
costs = st.floats(1e-3, 0.6)
loads = st.lists(st.tuples(costs, costs), max_size=12)


@given(errors, errors, loads)
def test_each_move_lessens_both_errors_and_nothing_goes_back(
    giver_s: float, taker_s: float, waiting: list[tuple[float, float]]
) -> None:
    found = list(moves(giver_s, taker_s, waiting))
    assert len(found) <= MOST_MOVES
    assert len({number for number, *_ in found}) == len(found)
    before = (giver_s, taker_s)
    for _, here_s, there_s in found:
        assert before[0] > here_s >= -1e-12 and before[1] < there_s <= 1e-12
        before = here_s, there_s
    if found:
        back = [waiting[number][::-1] for number, *_ in found]
        assert not list(moves(before[1], before[0], back)), "the taker has no error to give away"


def test_an_error_is_what_it_adds_to_a_step() -> None:
    step_time = model(base_s=0.01, row_s=0.001, context_s=1e-5)
    assert PlanError(100, 2).seconds(step_time) == pytest.approx(0.003)
    assert PlanError(-100, -2).seconds(step_time) == pytest.approx(-0.003)
    assert PlanError(-100, 1).seconds(step_time) == pytest.approx(0.0)
    assert PlanError(0, 0).seconds(step_time) == 0.0
    assert isfinite(PlanError(5, -5).seconds(step_time))
