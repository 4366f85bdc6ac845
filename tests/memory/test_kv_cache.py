"""Blocks for slots: prefixes, growth, forks, names."""

import numpy as np

from daemon.memory.hashing import HASH_BYTES, chain_hashes, split_hashes
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache
from daemon.state.sequence import Sequence


def cache(num_blocks: int = 16, prefix_cache: bool = True) -> KVCache:
    return KVCache(num_blocks, 4, 4, 64, prefix_cache)


def sequence(number: int, tokens: list[int], slot: int) -> Sequence:
    hashes = split_hashes(chain_hashes(tokens, 4))
    return Sequence(number, len(tokens), 8, 0, 0.0, number, hashes=hashes, slot=slot)


def test_blocks_for_rounds_up() -> None:
    assert [cache().blocks_for(tokens) for tokens in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_match_leaves_one_token_to_compute() -> None:
    kv = cache()
    first = sequence(1, list(range(8)), 0)
    kv.allocate(0, NOTHING_CACHED, 2 * 4)
    kv.seal(first, 8)
    assert kv.match(sequence(2, list(range(8)), 1)).blocks == kv.table.blocks(0)[:1].tolist()
    assert kv.match(sequence(3, list(range(9)), 1)).blocks == kv.table.blocks(0).tolist()


def test_only_computed_blocks_are_named() -> None:
    kv = cache()
    first = sequence(1, list(range(12)), 0)
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.seal(first, 7)
    assert first.num_sealed_blocks == 1
    kv.seal(first, 12)
    assert first.num_sealed_blocks == 3


def test_without_prefix_cache_nothing_is_named() -> None:
    kv = cache(prefix_cache=False)
    first = sequence(1, list(range(12)), 0)
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.seal(first, 12)
    assert kv.match(sequence(2, list(range(13)), 1)).blocks == []
    kv.release([0], 0)
    assert kv.pool.check().free == 16


def test_matched_idle_blocks_do_not_count_as_room() -> None:
    kv = cache(3)
    first = sequence(1, list(range(8)), 0)
    kv.allocate(0, NOTHING_CACHED, 2 * 4)
    kv.seal(first, 8)
    kv.release([0], 0)
    matched = kv.match(sequence(2, list(range(12)), 1)).blocks
    assert len(matched) == 2
    assert (
        kv.num_lacking(matched, 1) <= 0 < kv.num_lacking(matched, 2) and kv.num_lacking([], 3) <= 0
    )


def test_a_fork_shares_whole_blocks_and_copies_the_one_begun() -> None:
    kv = cache()
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.fork(0, 1, 9, 12)
    source, target = kv.table.blocks(0), kv.table.blocks(1)
    assert source[:2].tolist() == target[:2].tolist() and source[2] != target[2]
    sources, targets = kv.take_copies()
    assert (sources.tolist(), targets.tolist()) == ([source[2]], [target[2]])
    assert kv.take_copies()[0].size == 0
    kv.release([0], 0)
    kv.release([1], 0)
    assert kv.pool.check().free == 16


def test_slots_that_share_blocks_can_end_together() -> None:
    kv = cache(prefix_cache=False)
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.allocate(1, NOTHING_CACHED, 2 * 4)
    kv.fork(0, 2, 9, 12)
    kv.release([2, 0], last_step=4)
    assert (kv.pool.check().held, kv.pool.num_fenced) == (2, 4)
    kv.pool.step_done(4)
    assert kv.pool.check().free == 14
    assert kv.table.take_changes()[0].tolist() == [1, 1]


def test_a_fork_at_a_block_s_edge_copies_nothing() -> None:
    kv = cache()
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.fork(0, 1, 8, 12)
    assert kv.take_copies()[0].size == 0


def test_slots_grow_when_their_blocks_are_full() -> None:
    kv = cache()
    kv.allocate(0, NOTHING_CACHED, 1 * 4)
    kv.allocate(2, NOTHING_CACHED, 2 * 4)
    slots = np.array([0, 2])
    computed = np.array([4, 0, 7, 0], np.int32)  # of all slots
    short = kv.needing_block(slots, computed)
    assert short.tolist() == [0]
    kv.append_each(short)
    assert kv.table.held[[0, 2]].tolist() == [2, 2]
    assert kv.needing_block(slots, computed).size == 0


def test_changes_are_told_once_and_never_of_slots_that_were_cleared() -> None:
    kv = cache()
    kv.allocate(0, NOTHING_CACHED, 2 * 4)
    kv.allocate(1, NOTHING_CACHED, 1 * 4)
    kv.release([0], 0)
    kv.allocate(0, NOTHING_CACHED, 1 * 4)
    slots, indices, blocks = kv.table.take_changes()
    assert slots.tolist() == [1, 0] and indices.tolist() == [0, 0]
    assert blocks.tolist() == [*kv.table.blocks(1), *kv.table.blocks(0)]
    assert kv.table.take_changes()[0].size == 0


def test_blocks_that_are_handed_over_stay_owned() -> None:
    kv = cache()
    kv.allocate(0, NOTHING_CACHED, 3 * 4)
    kv.reservations.reserve(0, 5)
    row = kv.table.blocks(0).tolist()
    kept = kv.hand_over(0, 2 * 4)
    assert kept == row[:2] and kv.table.held[0] == 0
    assert (kv.reservations.num_slots, kv.reservations.num_unheld) == (0, 0)
    assert (kv.pool.check().held, kv.pool.owners()[kept].tolist()) == (2, [1, 1])
    assert kv.table.take_changes()[0].size == 0
    kv.pool.let_go(kept)
    assert kv.pool.check().free == 16


def test_hashes_chain() -> None:
    assert HASH_BYTES == 16
    kv = cache()
    first = sequence(1, [1, 2, 3, 4, 5, 6, 7, 8], 0)
    kv.allocate(0, NOTHING_CACHED, 2 * 4)
    kv.seal(first, 8)
    assert kv.match(sequence(2, [9, 2, 3, 4, 5, 6, 7, 8, 0], 1)).blocks == []
