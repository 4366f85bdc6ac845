"""Trajectories against a step-by-step count, and rebalancing that never goes back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.placement.rebalance import MOST_MOVES, PlanError, moves
from daemon.placement.trajectory import Trajectory
from daemon.wire.columns import int32
from tests.placement.made import model

sequences = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40)), max_size=12)


@given(sequences)
def test_it_says_what_counting_step_by_step_says(ones: list[tuple[int, int]]) -> None:
    step_time = model(base_s=0.01, row_s=0.001, context_s=1e-5)
    known, left = (int32([one[i] for one in ones]) for i in (0, 1))
    found = Trajectory(known, left)
    held = [sum(k + step for k, n in ones if n >= step) for step in range(1, 1 + max([0, *left]))]
    assert found.peaks == max([0, *held])
    after = [sum(k + end for k, n in ones if n > end) for end in sorted(left.tolist())]
    rises = dict(zip(sorted(left.tolist()), after, strict=True))
    told = dict(zip(found.ends.tolist(), found.after_ends().tolist(), strict=True))
    assert {end: told[end] for end in rises} == rises, "of those that end together the last counts"
    elapsed_s, ends_s = 0.0, {}
    for step in range(1, 1 + max([0, *left])):
        there = [k + step - 0.5 for k, n in ones if n >= step]
        elapsed_s += 0.01 + 0.001 * len(there) + 1e-5 * sum(there)
        ends_s[step] = elapsed_s
    assert found.ends_s(*map(np.array, step_time.decode_terms)).tolist() == pytest.approx(
        [ends_s[end] for end in sorted(left.tolist())]
    )


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
    assert np.isfinite(PlanError(5, -5).seconds(step_time))
