"""Long random lives of a few instances; see `random_migrations.py`."""

from functools import cache

import pytest

from daemon.core.values.snapshot import Counters
from tests.core.random_migrations import live
from tests.core.test_migration import sends
from tests.soak import tries

SEEDS = range(tries(8, 14))
STATE_SEEDS = range(tries(4, 14))
# In 1207 a stream comes due in the step in which a prompt gives way to a decode, and gets its slot.
LENDS_A_SLOT = 1207

WINDOWED_SEEDS = {
    74: "one that came with its last windows alone still takes the pages behind them",
    152: "one leaves before the step that copies its windows has answered",
    198: "one leaves before the step that copies its windows was planned",
    227: "a window is renewed in the step in which other slots take the last pages",
}
"""Layers with windows; each of these lives failed before it was mended."""


@cache
def lived(seed: int, drafts: bool = False) -> tuple[Counters, int]:
    """What a short life counted, and how many transfers went at once."""
    driver = live(seed, 250, drafts)
    return driver.core.counters, sum(one.at_once for one in sends(driver))


@pytest.mark.parametrize("seed", [*SEEDS, LENDS_A_SLOT])
def test_a_life_with_many_moves_ends_well(seed: int) -> None:
    counters, _ = lived(seed)
    assert counters.finished


@pytest.mark.parametrize("seed", SEEDS)
def test_a_life_with_many_moves_ends_well_where_rows_draft(seed: int) -> None:
    counters, _ = lived(seed, drafts=True)
    assert counters.finished


@pytest.mark.parametrize("seed", [*range(tries(2, 14)), *WINDOWED_SEEDS])
def test_a_life_with_many_moves_ends_well_where_layers_have_windows(seed: int) -> None:
    assert live(seed, 300, windows=True).core.counters.finished


@cache
def lived_with_states(seed: int) -> tuple[Counters, int]:
    """What a life counted whose prompts begin alike, and how many went on from a snapshot."""
    core = live(seed, 300, states=True).core
    return core.counters, sum(one.kv.state_status()[2] for one in core.instances)


@pytest.mark.parametrize("seed", STATE_SEEDS)
def test_a_life_with_many_moves_ends_well_where_layers_keep_states(seed: int) -> None:
    assert lived_with_states(seed)[0].finished


def test_states_are_moved_and_snapshots_are_hit() -> None:
    lives = [lived_with_states(seed) for seed in STATE_SEEDS]
    assert sum(counters.handoffs for counters, _ in lives) > tries(10, 40)
    assert sum(hits for _, hits in lives) > tries(20, 70)


def test_workers_die_where_rows_draft() -> None:
    counters = [lived(seed, drafts=True)[0] for seed in SEEDS]
    assert sum(one.accepted_tokens for one in counters) > tries(20, 40)
    assert sum(one.worker_deaths for one in counters) > tries(5, 10)


def test_these_lives_have_what_they_are_for() -> None:
    counters = [lived(seed)[0] for seed in SEEDS]
    assert sum(lived(seed)[1] for seed in SEEDS) > tries(5, 10)
    assert sum(one.handoffs for one in counters) > tries(20, 40)
    assert sum(one.handoffs_failed for one in counters) > tries(5, 10)
    assert sum(one.flips for one in counters) > tries(10, 20)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1000, 2500))
def test_many_more_lives_end_well(seed: int) -> None:
    live(seed, 400, drafts=seed % 3 == 0, windows=seed % 3 == 1, states=seed % 3 == 2)
