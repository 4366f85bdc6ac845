"""Where thousands wait, ranks are made anew a few at a time, and end as if made at once."""

import pytest

from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.admission import Admission
from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.order import RANKED_AT_ONCE, Order
from daemon.scheduler.policies.gittins import Gittins
from daemon.scheduler.policies.mlfq import Mlfq
from daemon.scheduler.policies.sarathi import Sarathi
from daemon.scheduler.policies.sjf import Sjf
from daemon.scheduler.residency import Residency
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence

MANY = 5 * RANKED_AT_ONCE


def waits(number: int, predicted: int = -1) -> Sequence:
    one = Sequence(number, 10 + number * 37 % 400, 500, 0, float(number % 7), number)
    one.predicted_tokens = predicted
    return one


def order_of(policy: type[Gittins | Sarathi | Sjf], count: int = MANY) -> Order:
    order = Order(0, policy(), SlotTable(2))
    order.step_time = StepTimeModel(0.01, 0.0001)
    for number in range(count):
        one = waits(number, 1 + number * 53 % 301)
        order.enqueue(one, one.arrived_s, one.arrived_s)
    return order


def ended(number: int, arrived_s: float, predicted: int = -1, outputs: int = 20) -> Sequence:
    one = Sequence(10_000 + number, 100, 500, 0, arrived_s, 10_000 + number)
    one.num_output_tokens, one.predicted_tokens = outputs, predicted
    return one


def finish(order: Order) -> None:
    while order.waiting.unranked:
        before = len(order.waiting.unranked)
        order.rank_some(60.0)
        assert len(order.waiting.unranked) < before


def test_of_a_few_nothing_is_put_off() -> None:
    order = order_of(Gittins, RANKED_AT_ONCE)
    before = list(order.waiting)
    for number in range(16):
        order.on_ended(ended(number, 0.0), 900.0)
    assert not order.waiting.unranked
    assert list(order.waiting) == sorted(order.waiting, key=lambda one: one.order_key) != before


def test_a_new_scale_comes_to_the_order_that_it_would_make_at_once() -> None:
    order = order_of(Gittins)
    before = list(order.waiting)
    for number in range(16):
        order.on_ended(ended(number, 0.0), 900.0)
    scale_s = order.ageing.scale_s
    assert len(order.waiting.unranked) == MANY - RANKED_AT_ONCE
    assert set(order.waiting) == set(before)
    assert list(order.waiting)[RANKED_AT_ONCE:] == before[RANKED_AT_ONCE:], "these wait their turns"
    assert order.waiting.at(MANY - 1) is before[-1]
    for number in range(300):  # another scale waits until all have this one
        order.on_ended(ended(number, 899.0), 900.0)
    assert order.ageing.scale_s == scale_s
    newcomer = waits(MANY)
    order.enqueue(newcomer, 0.0, 900.0)
    order.waiting.remove(before[-1])
    finish(order)
    assert len(order.waiting) == MANY
    ranks = {one.id: order._rank(one) for one in order.waiting}
    assert [one.rank for one in order.waiting] == [ranks[one.id] for one in order.waiting]
    assert list(order.waiting) == sorted(order.waiting, key=lambda one: one.order_key)
    order.on_ended(ended(99, 899.0), 900.0)
    assert order.ageing.scale_s != scale_s


@pytest.mark.parametrize("policy", [Sjf, Sarathi, Mlfq])
def test_another_policy_comes_to_the_order_of_those_that_came_under_it(
    policy: type[Sjf | Sarathi | Mlfq],
) -> None:
    order, other = order_of(Gittins), order_of(policy)  # type: ignore[arg-type]
    order.set_policy(policy(), 50.0)
    assert order.waiting.unranked
    finish(order)
    told = [
        [(one.id, one.rank, one.level, one.review_at) for one in of.waiting]
        for of in (order, other)
    ]
    assert told[0] == told[1]


def test_one_that_goes_on_before_its_turn_is_met_by_the_new_policy() -> None:
    order = order_of(Gittins)
    order.set_policy(Sjf(), 50.0)
    taken = list(order.waiting.unranked.values())[-1]
    assert taken.review_at < 1 << 30
    order.waiting.remove(taken)
    rank = order.running_rank(taken, 51.0)
    assert rank == Sjf().rank(taken, order.step_time) and taken.review_at == 1 << 30
    told = list(order.waiting.unranked.values())[-1]
    told.num_prompt_tokens, told.predicted_tokens = 1, 1
    order.on_prediction(told, 52.0)
    assert told.id not in order.waiting.unranked and order.waiting.first is told


def test_trust_that_is_lost_reaches_all_that_wait() -> None:
    order = order_of(Sjf)
    for number in range(200):
        told, true = (400, 10) if number % 2 else (20, 200)
        order.on_ended(ended(number, 0.0, told, true), 1.0)
    assert not order.trust.holds(100)
    assert any(one.trusted for one in order.waiting), "these wait their turns"
    finish(order)
    assert not any(one.trusted for one in order.waiting)
    assert list(order.waiting) == sorted(order.waiting, key=lambda one: one.order_key)


def test_sums_are_those_of_all_while_ranks_are_made() -> None:
    order = order_of(Gittins)
    for number in range(16):
        order.on_ended(ended(number, 0.0), 900.0)
    begun = ended(500, 3.0)
    order.enqueue(begun, 3.0, 900.0)
    order.waiting.unrank([begun])
    queue = order.waiting
    assert list(queue.begun()) == [begun] and queue.num_begun == 1
    assert queue.num_tokens == sum(one.num_known_tokens for one in queue)
    assert queue.left_steps == sum(one.left.steps for one in queue)
    known, _ = queue.columns(1 << 30)
    assert known.tolist() == [one.num_known_tokens for one in queue]
    queue.remove(begun)
    assert list(queue.begun()) == [] and queue.num_begun == 0


def test_the_first_is_ranked_though_one_step_admits_all_that_were() -> None:
    """A rank of another policy, or scale, would let it take anybody's place."""
    order = Order(0, Gittins(), SlotTable(MANY))
    order.step_time = StepTimeModel(0.01, 0.0001)
    kv = KVCache(100 * MANY, 16, MANY, 1024, prefix_cache=False)
    admission = Admission(order, kv, Residency(RECOMPUTE), GREEDY)
    for number in range(MANY):
        order.enqueue(waits(number, 1 + number * 53 % 301), 0.0, 0.0)
    order.set_policy(Sjf(), 50.0)
    for _ in range(MANY):
        first = order.waiting.first
        assert first.id not in order.waiting.unranked
        assert first.rank == Sjf().rank(first, order.step_time)
        assert admission.try_admit(first, 50.0) >= 0


def test_nobody_starves_by_the_level_of_another_policy() -> None:
    """Of those that the policy has not met yet nobody is watched before it has."""
    order = order_of(Gittins)
    order.set_policy(Mlfq(), 50.0)
    unmet = list(order.waiting.unranked.values())
    order.set_starve_s(0.1)
    kv = KVCache(1000 * MANY, 16, 2, 1024, prefix_cache=False)
    order.promote(kv, 1e6)
    assert len(order.promoted) == RANKED_AT_ONCE and not any(one.promoted for one in unmet)
    finish(order)
    order.promote(kv, 1e6)
    assert len(order.promoted) == MANY
