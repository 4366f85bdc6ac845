"""Long random lives of a few instances; see `random_moves.py`."""

import pytest

from tests.core.random_moves import live
from tests.core.test_migration import sends


# In 1207 a stream comes due in the step in which a prompt gives way to a decode, and gets its slot.
@pytest.mark.parametrize("seed", [*range(14), 1207])
def test_a_life_with_many_moves_ends_well(seed: int) -> None:
    live(seed, 250)


def test_these_lives_have_what_they_are_for() -> None:
    drivers = [live(seed, 200) for seed in range(100, 108)]
    counters = [one.core.counters for one in drivers]
    assert sum(one.at_once for driver in drivers for one in sends(driver)) > 10
    assert sum(one.handoffs for one in counters) > 40
    assert sum(one.handoffs_failed for one in counters) > 10
    assert sum(one.flips for one in counters) > 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1000, 2500))
def test_many_more_lives_end_well(seed: int) -> None:
    live(seed, 400)
