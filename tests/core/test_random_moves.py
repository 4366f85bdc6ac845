"""Long random lives of a few instances; see `random_moves.py`."""

from functools import cache

import pytest

from daemon.core.snapshot import Counters
from tests.core.random_moves import live

SEEDS = range(14)


@cache
def lived(seed: int) -> Counters:
    """What a short life counted."""
    return live(seed, 200).core.counters


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_with_many_moves_ends_well(seed: int) -> None:
    assert lived(seed).finished


def test_these_lives_have_what_they_are_for() -> None:
    counters = [lived(seed) for seed in SEEDS]
    assert sum(one.handoffs for one in counters) > 40
    assert sum(one.handoffs_failed for one in counters) > 10
    assert sum(one.flips for one in counters) > 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1000, 2500))
def test_many_more_lives_end_well(seed: int) -> None:
    live(seed, 400)
