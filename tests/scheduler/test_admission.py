"""Who gives way for what: blocks that are coming are counted once, and what lacks beyond them."""

import numpy as np

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.admission import Admission
from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.order import Order
from daemon.scheduler.policies.priority import Priority
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence
from tests.scheduler.test_mlfq import sequence

TOKENS, BLOCKS = 12, 3  # of each that runs: every block full


def admission_with(num_running: int, num_fenced: int, max_running: int = 8) -> Admission:
    """No block is available; so many come when step 1 answers."""
    kv = KVCache(BLOCKS * num_running + num_fenced + 1, 4, max_running, 400, False)
    order = Order(0, Priority(), SlotTable(max_running))
    admission = Admission(order, kv, Residency("recompute"), GREEDY)
    for number in range(num_running):
        one = sequence(TOKENS, number)
        admission.order.enqueue(one, 0.0, 0.0)
        slot = admission.admit(one, admission.plan(one), 0.0)
        admission.slots.computed[slot] = TOKENS
        admission.slots.known[slot] = admission.slots.delivered[slot] = TOKENS + 1
    kv.pool.release(kv.pool.allocate(num_fenced), last_step=1)
    kv.pool.allocate(kv.pool.num_available)
    admission.joined.clear()
    return admission


def urgent(num_prompt_tokens: int) -> Sequence:
    one = sequence(num_prompt_tokens, 99)
    one.priority = -1
    return one


def running(admission: Admission) -> list[int]:
    return [admission.slots.member(slot).arrival for slot in admission.slots.order().tolist()]


def test_each_block_that_comes_is_promised_to_one_decode() -> None:
    admission = admission_with(5, 2)
    order = admission.slots.order().copy()
    assert admission.grow_or_preempt(order, 0.0) == order[:2].tolist()
    assert running(admission) == [0, 1, 2, 3], "the last gave way, and its three blocks were enough"
    assert admission.num_promised == 2 and admission.stats.preemptions == 1


def test_a_last_token_on_its_way_is_a_promise_too() -> None:
    admission = admission_with(3, 0)
    order = admission.slots.order().copy()
    admission.slots.known[order[2]] = TOKENS  # computed whole: its answer ends it
    assert admission.grow_or_preempt(order[:2], 0.0) == order[:2].tolist()
    assert running(admission) == [0, 1, 2]


def test_whoever_has_a_reservation_gives_way_to_nobody() -> None:
    admission = admission_with(3, 0)
    order = admission.slots.order().copy()
    admission.kv.reservations.reserve(int(order[2]), BLOCKS)
    assert admission.grow_or_preempt(order[:1], 0.0) == []
    assert running(admission) == [0, 2], "the second gave way: the last has a reservation"


def test_only_what_lacks_beyond_what_comes_is_displaced() -> None:
    admission = admission_with(5, 4)
    one = urgent(24)  # six blocks, and one is spare
    admission.order.enqueue(one, 0.0, 0.0)
    plan = admission.plan(one)
    assert not admission.make_room(one, plan, 0.0)
    assert running(admission) == [0, 1, 2, 3]
    for _ in range(3):  # what it lacks is on its way, and was taken from one only
        admission.step += 1
        assert not admission.make_room(one, plan, 0.0)
    assert running(admission) == [0, 1, 2, 3]
    admission.kv.pool.step_done(1)
    assert admission.make_room(one, plan, 0.0)


def test_what_decodes_were_promised_is_not_counted_again() -> None:
    admission = admission_with(5, 4)
    one = urgent(12)
    admission.order.enqueue(one, 0.0, 0.0)
    plan = admission.plan(one)
    assert not admission.make_room(one, plan, 0.0) and len(running(admission)) == 5
    assert len(admission.grow_or_preempt(admission.slots.order()[:2], 0.0)) == 2
    assert not admission.make_room(one, plan, 0.0) or len(running(admission)) == 4
    assert running(admission) == [0, 1, 2, 3]


def test_a_slot_is_not_taken_before_the_blocks_are_there() -> None:
    admission = admission_with(4, 12, max_running=4)
    one = urgent(24)
    admission.order.enqueue(one, 0.0, 0.0)
    plan = admission.plan(one)
    assert not admission.make_room(one, plan, 0.0) and admission.slots.full
    admission.kv.pool.step_done(1)
    assert admission.make_room(one, plan, 0.0)
    assert running(admission) == [0, 1, 2]
    assert np.count_nonzero(admission.slots.sequence >= 0) == 3
