"""Who gives way for what: blocks that are coming are counted once, and what lacks beyond them."""

import numpy as np

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.policies.priority import Priority
from daemon.scheduler.residency import Residency
from daemon.scheduler.seats import Seats
from daemon.sequence import Sequence
from tests.scheduler.test_mlfq import sequence

TOKENS, BLOCKS = 12, 3  # of each that runs: every block full


def seats_with(num_running: int, num_fenced: int, max_running: int = 8) -> Seats:
    """No block is available; so many come when step 1 answers."""
    kv = KVCache(BLOCKS * num_running + num_fenced + 1, 4, max_running, 400, False)
    seats = Seats(0, Priority(), max_running, kv, Residency("recompute"))
    for number in range(num_running):
        one = sequence(TOKENS, number)
        seats.meet(one, 0.0)
        slot = seats.seat(one, seats.place_of(one))
        seats.slots.computed[slot] = TOKENS
        seats.slots.known[slot] = seats.slots.delivered[slot] = TOKENS + 1
    kv.pool.release(kv.pool.allocate(num_fenced), last_step=1)
    kv.pool.allocate(kv.pool.num_available)
    seats.joined.clear()
    return seats


def urgent(num_prompt_tokens: int) -> Sequence:
    one = sequence(num_prompt_tokens, 99)
    one.priority = -1
    return one


def running(seats: Seats) -> list[int]:
    return [seats.slots.member(slot).arrival for slot in seats.slots.order().tolist()]


def test_each_block_that_comes_is_promised_to_one_decode() -> None:
    seats = seats_with(5, 2)
    order = seats.slots.order().copy()
    assert seats.grow_by_force(order) == order[:2].tolist()
    assert running(seats) == [0, 1, 2, 3], "the last gave way, and its three blocks were enough"
    assert seats.num_promised == 2 and seats.moves.preemptions == 1


def test_a_last_token_on_its_way_is_a_promise_too() -> None:
    seats = seats_with(3, 0)
    order = seats.slots.order().copy()
    seats.slots.known[order[2]] = TOKENS  # computed whole: its answer ends it
    assert seats.grow_by_force(order[:2]) == order[:2].tolist()
    assert running(seats) == [0, 1, 2]


def test_only_what_lacks_beyond_what_comes_is_displaced() -> None:
    seats = seats_with(5, 4)
    one = urgent(24)  # six blocks, and one is spare
    seats.meet(one, 0.0)
    place = seats.place_of(one)
    assert not seats.make_room(one, place)
    assert running(seats) == [0, 1, 2, 3]
    for _ in range(3):  # what it lacks is on its way, and was taken from one only
        seats.step += 1
        assert not seats.make_room(one, place)
    assert running(seats) == [0, 1, 2, 3]
    seats.kv.pool.step_done(1)
    assert seats.make_room(one, place)


def test_what_decodes_were_promised_is_not_counted_again() -> None:
    seats = seats_with(5, 4)
    one = urgent(12)
    seats.meet(one, 0.0)
    place = seats.place_of(one)
    assert not seats.make_room(one, place) and len(running(seats)) == 5
    assert len(seats.grow_by_force(seats.slots.order()[:2])) == 2
    assert not seats.make_room(one, place) or len(running(seats)) == 4
    assert running(seats) == [0, 1, 2, 3]


def test_a_slot_is_not_taken_before_the_blocks_are_there() -> None:
    seats = seats_with(4, 12, max_running=4)
    one = urgent(24)
    seats.meet(one, 0.0)
    place = seats.place_of(one)
    assert not seats.make_room(one, place) and seats.slots.full
    seats.kv.pool.step_done(1)
    assert seats.make_room(one, place)
    assert running(seats) == [0, 1, 2]
    assert np.count_nonzero(seats.slots.sequence >= 0) == 3
