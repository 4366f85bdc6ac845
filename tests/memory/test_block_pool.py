"""The ledger: free + held + cached + fenced == total, whatever happens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.memory.block_pool import BlockPool, BlockUse, Ledger, LedgerError

NUM_BLOCKS = 12


def test_a_new_pool_is_free() -> None:
    assert BlockPool(5).check() == Ledger(total=5, free=5, held=0, cached=0, fenced=0)


def test_a_pool_without_blocks_is_a_pool() -> None:
    assert BlockPool(0).check().total == 0


def test_more_than_is_available_is_an_error_and_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(LedgerError):
        pool.allocate(2)
    assert pool.check() == Ledger(4, 1, 3, 0, 0)


def test_a_block_named_by_a_step_in_flight_is_fenced_until_it_answers() -> None:
    pool = BlockPool(4)
    pool.release(pool.allocate(2), last_step=7)
    assert pool.check() == Ledger(4, 2, 0, 0, 2)
    assert pool.num_available == 2
    pool.step_done(6)
    assert pool.num_fenced == 2
    pool.step_done(7)
    assert pool.check() == Ledger(4, 4, 0, 0, 0)


def test_a_shared_block_waits_for_the_newest_step_of_all_its_owners() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks, last_step=9)
    pool.release(blocks, last_step=8)
    pool.step_done(8)
    assert pool.num_fenced == 1, "step 9 named it for an owner that is gone"
    pool.step_done(9)
    assert pool.check().free == 2


def test_a_fenced_block_that_is_shared_again_keeps_its_fence() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks, last_step=9)
    pool.share(blocks)
    assert pool.check() == Ledger(2, 1, 1, 0, 0)
    pool.release(blocks, last_step=3)
    pool.step_done(8)
    assert pool.num_fenced == 1


def test_named_blocks_are_cached_and_evicted_longest_idle_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.cache.register([bytes([block]) * 16], [block])
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release([block], 0)
    assert pool.check() == Ledger(3, 0, 0, 3, 0)
    assert pool.num_available == 3
    assert pool.allocate(2) == [blocks[1], blocks[0]]
    assert pool.cache.match([bytes([blocks[2]]) * 16]) == [blocks[2]]
    assert pool.cache.match([bytes([blocks[0]]) * 16]) == []


def test_later_blocks_of_a_sequence_are_evicted_before_earlier_ones() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.cache.register([bytes([block]) * 16], [block])
    pool.release(blocks, 0)
    assert pool.allocate(1) == [blocks[2]]


def test_uses_name_every_block() -> None:
    pool = BlockPool(4)
    held, cached, fenced = ([block] for block in pool.allocate(3))
    pool.cache.register([b"x" * 16], [cached[0]])
    pool.release(cached, 0)
    pool.release(fenced, 5)
    uses = pool.uses()
    assert uses[held[0]] == BlockUse.HELD
    assert uses[cached[0]] == BlockUse.CACHED
    assert uses[fenced[0]] == BlockUse.FENCED
    assert (uses == BlockUse.FREE).sum() == 1
    pool.allocate(2)
    assert (pool.uses() == BlockUse.CACHED).sum() == 0, "evicted and held"


def test_check_finds_a_block_that_is_released_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks, 0)
    pool.release(blocks, 0)
    with pytest.raises(LedgerError):
        pool.check()


steps = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("share"), st.integers(0, 50), st.integers(1, 4)),
    st.tuples(st.just("release"), st.integers(0, 50), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.integers(0, 2), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60))
def test_the_counts_add_up_after_every_change(script: list[tuple[str, int, int]]) -> None:
    pool = BlockPool(NUM_BLOCKS)
    holders: list[list[int]] = []
    done = digest = 0
    for kind, first, second in script:
        if kind == "take" and first <= pool.num_available:
            blocks = pool.allocate(first)
            assert not set(blocks) & {block for held in holders for block in held}
            if second:
                for block in blocks:
                    digest += 1
                    pool.cache.register([digest.to_bytes(16)], [block])
            holders.append(blocks)
        elif kind == "share" and holders:
            shared = holders[first % len(holders)][:second]
            pool.share(shared)
            holders.append(shared)
        elif kind == "release" and holders:
            pool.release(holders.pop(first % len(holders)), done + second if second else 0)
        elif kind == "answer":
            done += first
            pool.step_done(done)
        pool.check()
        owners = pool.owners()
        assert all(owners[b] == sum(b in h for h in holders) for b in range(NUM_BLOCKS))
    for blocks in holders:
        pool.release(blocks, 0)
    pool.step_done(done + 3)
    ledger = pool.check()
    assert (ledger.held, ledger.fenced) == (0, 0)
