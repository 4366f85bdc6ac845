"""Displacement under learned costs: who is let go on though another one costs less."""

import pytest

from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.admission import Admission
from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.displacement import Displacement
from daemon.scheduler.order import PRIORITY_S, Order
from daemon.scheduler.pace import LEAST_SLICE
from daemon.scheduler.policies.gittins import Gittins
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Outlook, Sequence
from tests.scheduler.test_pace import MAX_PAUSE_S, TURN_S, Room, begun

STEP_S = 0.05


@pytest.mark.parametrize("far", [True, False])
def test_one_that_soon_ends_keeps_its_slot(far: bool) -> None:
    """A pause would delay it by more than the other one gains."""
    room = Room(swap=RECOMPUTE)
    room.order.step_time.mean_s = STEP_S
    member = begun(60, 0)
    member.rank = 1e6  # it costs a lot more than the one that waits
    span_s = (2.1 if far else 1.9) * MAX_PAUSE_S
    member.outlook = Outlook(1.0, span_s / STEP_S, span_s / STEP_S)
    slot = room.run(member, 0.0)
    room.deliver(slot)
    found = displaced(room, begun(60, 1), room.kv)
    assert found == ([slot] if far else [])


def displaced(room: Room, waits: Sequence, kv: KVCache) -> list[int]:
    displacement = Displacement(room.order, room.residency, room.pace)
    return displacement.for_one(waits, 1, kv, [], TURN_S + 1.0)


def test_a_better_priority_takes_the_place_of_one_that_soon_ends() -> None:
    """Whoever chose the priorities has said whose time counts more."""
    room = Room(swap=RECOMPUTE)
    room.order.step_time.mean_s = STEP_S
    member, better = begun(60, 0), begun(60, 1)
    better.priority, member.rank = -1, PRIORITY_S
    slot = room.run(member, 0.0)
    room.deliver(slot)
    assert displaced(room, better, room.kv) == [slot]


def test_a_due_stream_ends_a_turn_that_has_lasted_for_long_enough() -> None:
    """Ten blocks: six in a turn, and eight are due."""
    room = Room(swap=RECOMPUTE)
    due = room.leave(room.run(begun(128, 0), 0.0), 1.0)
    runs = room.run(begun(96, 1), now := 1.0 + MAX_PAUSE_S)
    displacement = Displacement(room.order, room.residency, room.pace)
    half_s = LEAST_SLICE * TURN_S
    assert displacement.for_one(due, 4, room.kv, [], now + 1.1 * half_s) == [], "it has no token"
    room.deliver(runs)
    assert displacement.for_one(due, 4, room.kv, [], now + 0.9 * half_s) == []
    assert displacement.for_one(due, 4, room.kv, [], now + 1.1 * half_s) == [runs]
    other = begun(96, 2)
    other.rank = -1e9
    assert displacement.for_one(other, 4, room.kv, [], now + 1.1 * half_s) == [], "it is not due"


@pytest.mark.parametrize("due", [True, False])
def test_who_is_due_needs_no_spare_block(due: bool) -> None:
    """All that come due within a turn had the pool together, to the last block."""
    kv = KVCache(10, 16, 8, 1024, prefix_cache=False)
    order = Order(0, Gittins(), SlotTable(8))
    admission = Admission(order, kv, Residency(RECOMPUTE), GREEDY)
    admission.pace.max_pause_s = MAX_PAUSE_S
    ones = [begun(96, 0), begun(64, 1)]  # six blocks and four
    ones[1].paused_since_s = 0.0
    for one in ones:
        order.enqueue(one, 0.0, 0.0)
    admission.pace.pause(ones[1])
    now = MAX_PAUSE_S if due else 0.5 * MAX_PAUSE_S
    admission.admit(ones[0], admission.plan(ones[0]), now)
    assert (admission.try_admit(ones[1], now) >= 0) is due
