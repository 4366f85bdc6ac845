"""Uploads ahead of need: what is found, what is given up, and what a short rest costs."""

from dataclasses import dataclass, field

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.memory.hashing import HASH_BYTES
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache, Match
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.uploads import UPLOAD_SHARE, _names
from daemon.state.request import State
from daemon.state.sequence import Sequence, Where

BLOCK = 4
NUM_BLOCKS = 200
STEP = StepTimeModel(1.0)


@dataclass
class Memory:
    """One instance's memory with a host pool, and copies that end when they are told to."""

    kv: KVCache = field(default_factory=lambda: KVCache(NUM_BLOCKS, BLOCK, 8, 800, False))
    slots: SlotTable = field(default_factory=lambda: SlotTable(8))
    residency: Residency = field(default_factory=lambda: Residency("proactive"))
    step: int = 0

    def __post_init__(self) -> None:
        self.residency.reset([], 400, 0.01)

    def parked(self, number: int, num_tokens: int) -> Sequence:
        """A sequence whose KV of so many tokens is in host memory alone."""
        sequence = Sequence(number, num_tokens - 1, 100, 0, 0.0, number)
        slot = self.slots.join(sequence, num_tokens)
        self.kv.allocate(slot, NOTHING_CACHED, num_tokens)
        sequence.move(State.RUNNING)
        self.residency.admit(sequence, self.kv, -1, self.step + 1, STEP, 0.0)
        self.residency.park(
            sequence, num_tokens, self.slots, self.kv, self.step + 1, lambda _tokens: 1e9
        )
        self.kv.release([slot], 0)
        self.slots.leave(slot)
        sequence.move(State.PREEMPTED)
        self.copied()
        return sequence

    def copied(self) -> None:
        """A plan with all orders, whose copies have ended."""
        self.step += 1
        ordered = self.residency.take_orders(self.step)
        counts = len(ordered[0]), 0.01 * len(ordered[0]), len(ordered[3]), 0.01 * len(ordered[3])
        self.residency.on_copied(self.kv, self.step, 0.0, *counts)
        self.kv.pool.check()

    def upload(self, *candidates: Sequence) -> None:
        self.residency.upload_ahead(candidates, 0, self.kv, self.step + 1, STEP)
        self.kv.pool.check()

    def found(self, sequence: Sequence) -> list[int]:
        return self.residency.uploads.found(sequence, 0, self.kv)


def test_what_is_uploaded_is_found_once_it_is_there() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence)
    assert not memory.found(sequence) and memory.kv.pool.num_fenced == 5
    memory.copied()
    assert len(memory.found(sequence)) == 5
    assert memory.kv.pool.num_available == NUM_BLOCKS  # it costs no room
    assert sequence.residence.where is Where.HOST and len(sequence.residence.host_blocks) == 5


def test_names_lie_among_the_digests_of_the_prefix_cache() -> None:
    memory = Memory()
    names = list(_names(memory.parked(1, 18), 0, memory.kv))
    assert len(set(names)) == 5 and {len(name) for name in names} == {HASH_BYTES}


def test_the_first_candidate_goes_first_and_the_share_bounds_all() -> None:
    memory = Memory()
    first, second = memory.parked(1, 60), memory.parked(2, 80)
    for _ in range(10):
        memory.upload(first, second)
        memory.copied()
    together = len(memory.found(first)), len(memory.found(second))
    assert together == (15, int(UPLOAD_SHARE * NUM_BLOCKS) - 15)
    assert memory.residency.uploads.num_ordered == sum(together)


def test_blocks_that_another_needs_are_given_up_without_a_copy() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence)
    memory.copied()
    taken = memory.kv.pool.allocate(NUM_BLOCKS)
    assert not memory.found(sequence)
    assert not memory.residency.space.has_orders and sequence.residence.parked_tokens == 18
    memory.kv.pool.release(taken, 0)
    memory.kv.pool.check()


def test_nothing_is_uploaded_while_the_link_is_busy_or_no_block_is_free() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence)
    memory.residency.take_orders(memory.step + 1)
    before = memory.residency.uploads.num_ordered
    memory.upload(sequence)
    assert memory.residency.uploads.num_ordered == before
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.kv.pool.allocate(NUM_BLOCKS - memory.kv.num_spare)
    memory.upload(sequence)
    assert not memory.residency.uploads.num_ordered


def test_a_part_full_block_is_another_one_when_it_is_fuller() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence)
    memory.copied()
    sequence.residence.parked_tokens = 19
    assert len(memory.found(sequence)) == 4


def test_blocks_that_are_found_belong_to_their_sequence_alone() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence)
    memory.copied()
    blocks = memory.found(sequence)
    memory.kv.allocate(3, Match(blocks, 5), 18)
    memory.residency.uploads.take(blocks, memory.kv.pool)
    assert not memory.found(sequence) and memory.residency.uploads.num_used == 5
    memory.kv.release([3], 0)
    assert memory.kv.pool.check().cached == 0


@pytest.mark.parametrize(("num_tokens", "waits"), [(8, False), (60, True)])
def test_a_short_rest_is_awaited_and_a_long_one_sat_out(num_tokens: int, waits: bool) -> None:
    memory = Memory()
    sequence = memory.parked(1, num_tokens)
    slot = memory.slots.join(sequence, num_tokens)
    memory.kv.allocate(slot, NOTHING_CACHED, num_tokens)
    sequence.move(State.RUNNING)
    memory.residency.admit(sequence, memory.kv, 0, memory.step + 1, STEP, 0.0)
    assert memory.residency.is_returning(sequence) is waits
    *_, awaited = memory.residency.take_orders(memory.step + 1)
    assert awaited == (0 if waits else memory.step + 1)


def test_a_candidate_that_comes_twice_is_uploaded_once() -> None:
    memory = Memory()
    sequence = memory.parked(1, 18)
    memory.upload(sequence, sequence)
    assert memory.residency.uploads.num_ordered == 5
