"""Displacement under learned costs: who is let go on though another one costs less."""

import pytest

from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.displacement import Displacement
from daemon.scheduler.order import PRIORITY_S
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
