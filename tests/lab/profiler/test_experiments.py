"""Every experiment can be computed, and the list covers what the cost model asks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.lab.profiler.experiments import (
    HELD_OUT,
    MOST_CONTEXT_TOKENS,
    Kind,
    LoadedLimits,
    experiments,
)
from daemon.lab.profiler.synthetic import PlanMaker, StepRow
from tests.lab.profiler.truth import LIMITS

SMALL = LoadedLimits(max_batch_tokens=8, max_slots=2, max_len=24, num_blocks=3, block_size=16)


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(8, 20_000), st.integers(2, 9000))
@settings(max_examples=40, deadline=None)
def test_all_are_within_the_limits(
    max_batch_tokens: int, max_slots: int, max_len: int, num_blocks: int
) -> None:
    limits = LoadedLimits(max_batch_tokens, max_slots, max_len, num_blocks, block_size=16)
    maker = PlanMaker(limits.block_size, limits.max_slots)
    wanted = experiments(limits)
    assert len({one.rows for one in wanted}) == len(wanted), "one is measured twice"
    assert [one.rank for one in wanted] == sorted(one.rank for one in wanted)
    for one in wanted:
        work = maker.work(one.rows)
        assert 0 < work.num_tokens == one.num_tokens <= max_batch_tokens
        assert len(one.rows) <= max_slots
        assert all(row.before >= 0 and row.before + row.count <= max_len for row in one.rows)
        assert maker.num_blocks(one.rows) <= num_blocks
        assert sum(row.before for row in one.rows) <= MOST_CONTEXT_TOKENS


@pytest.mark.parametrize("limits", [LIMITS, SMALL])
def test_the_first_ones_suffice_for_a_fit(limits: LoadedLimits) -> None:
    first = {one.kind for one in experiments(limits) if one.rank == 0}
    assert {Kind.TOKENS, Kind.DECODE} <= first


def test_every_kind_is_there_and_held_out_ones_are_none_of_those_fitted() -> None:
    wanted = experiments(LIMITS)
    assert {one.kind for one in wanted} == set(Kind)
    assert {Kind.MIXED, Kind.SKEWED} == HELD_OUT
    held_out = [one for one in wanted if one.kind in HELD_OUT]
    assert len(held_out) > 12
    assert all(len({row.before for row in one.rows}) > 1 for one in held_out if len(one.rows) > 3)


def test_plans_name_blocks_of_their_own() -> None:
    maker = PlanMaker(LIMITS.block_size, LIMITS.max_slots)
    for one in experiments(LIMITS)[::7]:
        tables = maker.tables(1, one.rows).batch
        assert np.unique(tables.table_blocks).size == tables.table_blocks.size
        assert tables.num_tokens == 0
        for slot, row in enumerate(one.rows):
            indices = tables.table_indices[tables.table_slots == slot]
            assert indices.tolist() == list(range(-(-(row.before + row.count) // 16)))
        plan = maker.step(2, one.rows)
        batch = plan.batch
        assert len(plan.inputs) == int(batch.counts[batch.fed == 1].sum())
        assert (batch.counts[batch.fed == 0] == 1).all()


def test_groups_of_layers_have_blocks_of_their_own_and_windows_bound_contexts() -> None:
    maker = PlanMaker(16, 8, (0, 32, 32), 10)
    rows = (StepRow(1, 99), StepRow(1, 19), StepRow(20, 40))
    assert maker.num_blocks(rows) == 3 * (7 + 2 + 4)
    batch = maker.tables(1, rows).batch
    assert np.unique(batch.table_blocks).size == batch.table_blocks.size == 39
    cells = batch.table_indices[batch.table_slots == 1].tolist()
    assert cells == [0, 1, 10, 11, 20, 21]
    work = maker.work(rows)
    assert (work.num_decodes, work.chunks) == (2, ((20, 40),))
    assert work.decode_context == round((120 + 2 * (32 + 20)) / 3)
    assert PlanMaker(16, 8).work(rows).decode_context == 120
