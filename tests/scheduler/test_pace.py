"""Pace: who comes due, whose turn it is, and who may begin."""

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache
from daemon.memory.swap_space import PROACTIVE, RECOMPUTE
from daemon.scheduler.lengths import LEAST
from daemon.scheduler.order import Order
from daemon.scheduler.pace import MOST_POOLS, SLICE_SHARE, StreamPace
from daemon.scheduler.policies.gittins import Gittins
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.state.pause import Cause
from daemon.state.sequence import Outlook, Sequence
from tests.scheduler.test_mlfq import sequence

BLOCK, MAX_PAUSE_S = 16, 5.0
TURN_S = SLICE_SHARE * MAX_PAUSE_S


class Room:
    """A pool, slots and their pace."""

    def __init__(self, num_blocks: int = 10, max_running: int = 8, swap: str = PROACTIVE) -> None:
        self.slots = SlotTable(max_running)
        self.kv = KVCache(num_blocks, BLOCK, max_running, 1024, prefix_cache=False)
        self.order = Order(0, Gittins(), self.slots)
        self.residency = Residency(swap)
        self.pace = StreamPace(self.order, self.residency)
        self.pace.max_pause_s = MAX_PAUSE_S

    def run(self, one: Sequence, now: float, move_s: float = 0.0) -> int:
        """Give it a slot and its blocks."""
        if one in list(self.order.waiting):
            self.order.waiting.remove(one)
        slot = self.slots.join(one, 0)
        self.kv.allocate(slot, NOTHING_CACHED, one.num_known_tokens)
        self.pace.resume(one, now, move_s)
        return slot

    def deliver(self, *slots: int) -> None:
        """They got a token since they have their slots."""
        self.slots.delivered[list(slots)] += 1

    def leave(self, slot: int, now: float) -> Sequence:
        """It gives way."""
        one = self.slots.leave(slot)
        one.pause(now, Cause.SWAPPED)
        self.kv.release([slot], 0)
        self.order.waiting.push(one)
        self.pace.pause(one)
        return one


def begun(num_tokens: int, arrival: int) -> Sequence:
    one = sequence(num_tokens - 1, arrival)
    one.num_output_tokens = 1
    return one


def test_a_stream_comes_due_when_its_pause_is_over_the_longest_first() -> None:
    room = Room()
    slots = [room.run(begun(16, number), 0.0) for number in range(2)]
    later, sooner = room.leave(slots[0], 2.0), room.leave(slots[1], 1.0)
    assert room.pace.due(5.9) is None
    assert room.pace.due(6.1) is sooner
    room.run(sooner, 6.1)
    assert room.pace.due(6.9) is None and room.pace.due(7.0) is later
    room.order.step_time.mean_s = 0.25
    assert room.pace.due(6.5) is later, "steps take time"


def test_one_that_has_not_begun_never_comes_due() -> None:
    room = Room()
    room.leave(room.run(sequence(16, 0), 0.0), 1.0)
    assert room.pace.due(100.0) is None


def test_a_pause_goes_on_until_a_token_came() -> None:
    room = Room()
    one = room.leave(room.run(begun(16, 0), 0.0), 1.0)
    room.leave(room.run(one, 3.0), 5.0)
    assert room.pace.due(6.0) is one


def test_a_turn_protects_and_lasts_as_long_as_the_moves() -> None:
    room = Room()
    short, long = room.run(begun(16, 0), 1.0), room.run(begun(16, 1), 1.0, move_s=9.0)
    room.deliver(short, long)
    for now, over in ((0.99 * TURN_S, []), (1.01 * TURN_S, [short]), (9.1, [short, long])):
        assert room.pace.out_of_slice(room.slots.order(), 1.0 + now).tolist() == over


def test_who_came_back_stays_until_it_has_a_token() -> None:
    room = Room()
    slot = room.run(begun(16, 0), 1.0)
    new = room.run(sequence(16, 1), 1.0)
    assert room.pace.out_of_slice(room.slots.order(), 99.0).tolist() == [new]
    room.deliver(slot)
    assert room.pace.out_of_slice(room.slots.order(), 99.0).tolist() == [slot, new]


def test_nobody_begins_a_turn_that_keeps_out_one_that_comes_due() -> None:
    """Ten blocks: four in their turn, five to come back within it; so one may run."""
    room = Room()
    room.leave(room.run(begun(79, 0), 0.0), 1.0)
    now = 1.0 + MAX_PAUSE_S - 0.5 * TURN_S
    room.run(begun(64, 1), now)
    one, two = sequence(15, 2), sequence(31, 3)
    assert room.pace.leaves_room(one, room.kv, now)
    assert not room.pace.leaves_room(two, room.kv, now)
    before = now - TURN_S
    assert room.pace.leaves_room(two, room.kv, before), "its turn is over by then"


def test_what_others_have_not_fetched_is_counted_as_a_turn_is() -> None:
    """As above, but the four blocks are of one that left, and goes on elsewhere."""
    room = Room()
    room.leave(room.run(begun(79, 0), 0.0), 1.0)
    now = 1.0 + MAX_PAUSE_S - 0.5 * TURN_S
    left = begun(64, 1)
    room.run(left, now)
    room.residency.leave_remote_kv(left, 64, room.kv)
    room.slots.leave(left.slot)
    assert room.pace.leaves_room(sequence(15, 2), room.kv, now)
    assert not room.pace.leaves_room(sequence(31, 3), room.kv, now)


def test_what_grows_meanwhile_is_counted() -> None:
    """As above, and steps of a fiftieth of a turn: a block for each 16 tokens of three streams."""
    room = Room()
    room.leave(room.run(begun(79, 0), 0.0), 1.0)
    now = 1.0 + MAX_PAUSE_S - 0.5 * TURN_S
    room.run(begun(64, 1), now)
    room.order.step_time.mean_s = TURN_S / 50
    assert not room.pace.leaves_room(sequence(15, 2), room.kv, now)
    room.order.step_time.mean_s = TURN_S / 4
    assert room.pace.leaves_room(sequence(15, 2), room.kv, now)


def test_the_first_to_come_due_is_asked_in_where_another_would_keep_it_out() -> None:
    room = Room()
    paused = room.leave(room.run(begun(79, 0), 0.0), 1.0)
    now = 1.0 + MAX_PAUSE_S - 0.5 * TURN_S
    room.run(begun(64, 1), now)
    small, large = sequence(15, 2), sequence(31, 3)
    assert room.pace.next(small, room.kv, now) is small
    assert room.pace.next(large, room.kv, now) is paused
    assert room.pace.next(small, room.kv, 1.0 + MAX_PAUSE_S) is paused, "it is due"


def test_slots_are_counted_as_blocks_are() -> None:
    room = Room(max_running=2)
    room.leave(room.run(begun(16, 0), 0.0), 1.0)
    now = 1.0 + MAX_PAUSE_S - 0.5 * TURN_S
    assert room.pace.leaves_room(sequence(15, 1), room.kv, now)
    room.run(begun(16, 2), now)
    assert not room.pace.leaves_room(sequence(15, 3), room.kv, now)


def test_no_more_begin_than_the_pool_can_keep() -> None:
    room = Room()
    expected = int(MOST_POOLS * 10 * BLOCK / 2)
    running, paused, new = begun(16, 0), begun(16, 1), sequence(15, 2)
    for one in (running, paused):
        one.outlook = Outlook(1.0, expected - 24.0, expected - 24.0)
    slot = room.run(paused, 0.0)
    room.leave(slot, 1.0)
    room.run(running, 1.0)
    assert room.pace.may_begin(new, room.kv), "16 tokens are left over"
    new.outlook = Outlook(1.0, 2.0, 2.0)
    assert not room.pace.may_begin(new, room.kv)


def test_alone_anybody_may_begin() -> None:
    room, giant = Room(), sequence(15, 0)
    giant.outlook = Outlook(1.0, 1e6, 1e6)
    assert room.pace.may_begin(giant, room.kv)


@pytest.mark.parametrize("other", ["mlfq", "speculative", "sarathi"])
def test_other_policies_promise_nothing(other: str) -> None:
    room = Room()
    room.pace.max_pause_s = 0.0
    slot = room.run(begun(16, 0), 0.0)
    assert room.pace.out_of_slice(room.slots.order(), 0.0).tolist() == [slot]
    room.leave(slot, 1.0)
    assert room.pace.due(1e9) is None


def begins(room: Room, num_pools: float) -> bool:
    """Whether one more may begin that brings all to so many pools, once lengths are known."""
    for number in range(LEAST):
        room.order.lengths.observe(begun(16, number))
    alone = begun(16, 0)
    room.run(alone, 0.0)
    newcomer = sequence(16, 1)
    left = num_pools * room.kv.pool.num_blocks * BLOCK - alone.expected_length - 16
    newcomer.outlook = Outlook(1.0, left, left)
    return room.pace.may_begin(newcomer, room.kv)


@pytest.mark.parametrize(("swap", "host", "most"), [
    (PROACTIVE, True, MOST_POOLS), (PROACTIVE, False, 1.5), (RECOMPUTE, True, 1.5),
])  # fmt: skip
def test_fewer_begin_where_who_comes_back_is_computed_again(
    swap: str, host: bool, most: float
) -> None:
    """A pool of 160 tokens takes a second: half of one may come back each five seconds."""
    for num_pools in (most - 0.05, most + 0.05):
        room = Room(swap=swap)
        room.order.step_time = StepTimeModel(0.02, 1 / 160)
        room.residency.reset([], 100 if host else 0, 0.001)
        assert begins(room, num_pools) == (num_pools < most)


def test_a_link_that_is_slower_than_computing_is_as_none() -> None:
    room = Room()
    room.order.step_time = StepTimeModel(0.02, 1 / 160)
    room.residency.reset([], 100, 0.2)
    assert not begins(room, 1.6)
