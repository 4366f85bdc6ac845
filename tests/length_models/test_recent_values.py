"""The latest values: the last ones alone, in order, and what bounds say of the others."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.length_models.recent import Recent

TAIL = 0.1
seen = st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=80)


def made(values: Sequence[tuple[float, bool]], size: int = 1000) -> Recent:
    recent = Recent(size)
    for value, at_least in values:
        recent.add(value, at_least)
    return recent


def shared_out(values: Sequence[tuple[float, bool]]) -> tuple[list[float], list[float], float]:
    """Values in order, the weight of each, and what is left: handed on one bound at a time."""
    order = sorted(values)
    weights, rest = [1.0] * len(order), 0.0
    for place, (_, at_least) in enumerate(order):
        if at_least:
            larger = len(order) - place - 1
            for other in range(place + 1, len(order)):
                weights[other] += weights[place] / larger
            rest += 0.0 if larger else weights[place]
            weights[place] = 0.0
    return [value for value, _ in order], weights, rest


@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.integers(1, 20))
def test_recent_values_are_the_last_ones_in_order(values: list[int], size: int) -> None:
    recent = made([(value, False) for value in values], size)
    last = sorted(values[-size:])
    assert len(recent) == len(last)
    assert recent.mean() == pytest.approx(sum(last) / len(last))
    assert recent.middle() == last[(len(last) - 1) // 2]
    assert last[0] <= recent.middle() <= recent.upper(TAIL) <= last[-1]
    assert sum(value > recent.upper(TAIL) for value in last) <= TAIL * (len(last) + 1)


def test_the_high_rank_is_that_of_split_conformal_prediction() -> None:
    assert made([(value, False) for value in range(1, 20)]).upper(0.1) == 18.0


@given(seen, st.integers(1, 100), st.integers(0, 200))
def test_a_bound_hands_its_weight_to_all_that_are_larger(
    values: list[tuple[float, bool]], size: int, beyond: int
) -> None:
    recent = made(values, size)
    order, weights, rest = shared_out(values[-size:])
    far = max(beyond, order[-1])
    total = sum(weight * value for weight, value in zip(weights, order, strict=True))
    assert recent.mean(beyond) == pytest.approx((total + rest * far) / len(order))
    found = recent.upper(TAIL, beyond)
    below = sum(weight for weight, value in zip(weights, order, strict=True) if value <= found)
    assert found == far or below >= (1.0 - TAIL) * len(order) - 1e-6
    ends = {value for value, at_least in values if not at_least}
    assert found in ends | {far} and recent.middle(beyond) in ends | {far}
    shares = [recent.upper(share, beyond) for share in (0.9, 0.5, 0.1, 0.01)]
    assert all(a <= b for a, b in pairwise(shares))


def test_without_a_whole_value_all_lies_beyond() -> None:
    recent = made([(16, True)] * 40)
    assert (recent.mean(256), recent.middle(256), recent.upper(TAIL, 1024)) == (256, 256, 1024)
    assert recent.mean() == recent.upper(TAIL) == 16


def test_a_bound_is_forgotten_as_a_bound() -> None:
    recent = made([(5, True), (5, False), (5, True), (5, False)], size=2)
    assert recent.mean(100) == pytest.approx(52.5), "a bound is larger than its equals"
    recent.add(5)
    assert recent.mean(100) == 5.0
