"""The laws of a Core that can be seen from inside it, whoever drives it."""

from collections import Counter

import numpy as np

from daemon.core.core import Core
from daemon.core.instance import Instance
from daemon.request import State


def check_laws(core: Core) -> None:
    """Ledgers, places and orders, at this moment."""
    seats: Counter[int] = Counter()
    for instance in core.instances:
        _check_instance(instance, seats)
    for leader, followers in core.held_back.items():
        assert leader in core.sequences
        for follower in followers:
            assert follower.state is State.WAITING and follower.slot < 0
            seats[follower.id] += 1
    once = Counter(dict.fromkeys(core.sequences, 1))
    assert seats == once, "a sequence in two places or none"


def check_nothing_left(core: Core) -> None:
    """Everything came back: the Core is as it was before the first request."""
    assert core.idle and not core.held_back and not core.num_waiting
    for instance in core.instances:
        ledger = instance.scheduler.kv.pool.check()
        assert ledger.held == 0 and ledger.fenced == 0, ledger
        host = instance.scheduler.swapper.space.pool.check()
        assert host.free == host.total, host
        assert instance.scheduler.slots.num_running == 0
        assert len(instance.scheduler.waiting) == 0


def _check_instance(instance: Instance, seats: Counter[int]) -> None:
    scheduler = instance.scheduler
    kv, slots = scheduler.kv, scheduler.slots
    kv.pool.check()
    order = slots.order()
    _check_host(instance)
    assert (np.diff(slots.rank[order]) >= 0).all()
    assert sorted([*order.tolist(), *slots.vacant]) == list(range(slots.max_slots))
    used = [kv.table.blocks(slot) for slot in order.tolist()]
    owners = np.bincount(np.concatenate([[], *used]).astype(int), minlength=kv.pool.num_blocks)
    assert np.array_equal(owners, kv.pool.owners()), "owners that are in no table"
    assert (kv.table.held[order] * kv.block_size >= slots.computed[order]).all()
    assert (slots.computed[order] <= slots.known[order]).all()
    assert (slots.delivered[order] <= slots.known[order]).all()
    if instance.config.stages > 1:
        on_the_way = slots.known[order] - slots.delivered[order]
        assert (on_the_way <= 1).all(), "a pipeline draws a token before the one it follows"
    for slot in order.tolist():
        member = slots.member(slot)
        assert member.state is State.RUNNING and member.slot == slot
        assert member.instance == instance.index
        seats[member.id] += 1
    places = [one.place for one in scheduler.waiting]
    assert places == sorted(places)
    for one in scheduler.waiting:
        assert one.state in (State.WAITING, State.PREEMPTED) and one.slot < 0
        assert one.instance == instance.index
        seats[one.id] += 1
    waiting = sum(one.num_known_tokens for one in scheduler.waiting)
    assert scheduler.waiting.num_tokens == waiting


def _check_host(instance: Instance) -> None:
    """Host blocks have one owner each, and parked tokens lie in them."""
    scheduler = instance.scheduler
    space, block_size = scheduler.swapper.space, scheduler.kv.block_size
    space.pool.check()
    running = [scheduler.slots.member(slot) for slot in scheduler.slots.order().tolist()]
    kept = [space.places(one.id) for one in (*running, *scheduler.waiting)]
    owned = np.flatnonzero(space.pool.owners()).tolist()
    assert sorted(place for places in kept for place in places) == owned
    for one in scheduler.waiting:
        assert one.parked_tokens <= len(space.places(one.id)) * block_size
        assert one.parked_tokens < max(1, one.num_known_tokens)
