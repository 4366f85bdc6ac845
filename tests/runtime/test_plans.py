"""From batches to plans: token ids of the fed rows alone, and what joining sequences bring."""

import numpy as np
import pytest

from daemon.runtime.plans import Planner
from daemon.runtime.token_store import TokenStore
from daemon.state.batch import Batch
from daemon.state.request import sequence_id
from daemon.wire.columns import int32
from tests.runtime.ends import generate

A, B = sequence_id(0, 0), sequence_id(1, 0)


def batch_of(rows: list[tuple[int, int, int, int]], joined: dict[int, int]) -> Batch:
    """A batch of (slot, start, count, fed) rows and of slots with their new sequences."""
    slots, starts, counts, fed = (int32(column) for column in zip(*rows, strict=True))
    none = int32()
    return Batch(
        instance=0,
        step=1,
        slots=slots,
        starts=starts,
        counts=counts,
        samples=np.ones(len(rows), np.uint8),
        fed=fed.astype(np.uint8),
        table_slots=none,
        table_indices=none,
        table_blocks=none,
        copy_sources=none,
        copy_targets=none,
        left_slots=none,
        joined_slots=int32(list(joined)),
        joined_sequences=np.array(list(joined.values()), np.int64),
    )


@pytest.fixture
def store() -> TokenStore:
    store = TokenStore(4)
    store.add(0, generate(0, [10, 11, 12]))
    store.add(1, generate(1, [20, 21], presence_penalty=0.5))
    store.append(np.array([A, A, B]), int32([13, 14, 22]))
    return store


def test_fed_rows_bring_their_tokens_in_row_order(store: TokenStore) -> None:
    planner = Planner(store)
    plan = planner.plan(batch_of([(3, 0, 2, 1), (1, 1, 2, 1)], {1: A, 3: B}))
    assert plan.inputs.tolist() == [20, 21, 11, 12] and plan.inputs.dtype == np.int32
    assert [(j.slot, j.sequence, j.num_prompt_tokens) for j in plan.joins] == [(1, A, 3), (3, B, 2)]
    assert [j.history.tolist() for j in plan.joins] == [[], [20, 21, 22]]


def test_decodes_bring_nothing(store: TokenStore) -> None:
    planner = Planner(store)
    planner.plan(batch_of([(1, 0, 3, 1)], {1: A}))
    plan = planner.plan(batch_of([(1, 3, 1, 0)], {}))
    assert plan.inputs.size == 0 and plan.inputs.dtype == np.int32
    assert plan.joins == ()


def test_recomputing_feeds_across_prompt_and_answer(store: TokenStore) -> None:
    plan = Planner(store).plan(batch_of([(0, 2, 3, 1), (1, 2, 1, 1)], {0: A, 1: B}))
    assert plan.inputs.tolist() == [12, 13, 14, 22]


def test_a_slot_s_next_sequence_is_not_taken_for_its_last(store: TokenStore) -> None:
    planner = Planner(store)
    planner.plan(batch_of([(0, 0, 3, 1)], {0: A}))
    store.drop(A)
    plan = planner.plan(batch_of([(0, 0, 2, 1)], {0: B}))
    assert plan.inputs.tolist() == [20, 21]


def test_a_plan_that_names_unknown_tokens_is_an_error(store: TokenStore) -> None:
    with pytest.raises(LookupError, match="not known yet"):
        Planner(store).plan(batch_of([(0, 3, 3, 1)], {0: A}))
