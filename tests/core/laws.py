"""The laws of a Core that can be seen from inside it, whoever drives it."""

from collections import Counter
from collections.abc import Iterator
from copy import copy
from itertools import islice
from math import inf

import numpy as np

from daemon.core.core import Core
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.placing.candidate import InstanceView
from daemon.core.wakes import NEVER
from daemon.memory.snapshot_kv import SnapshotKV
from daemon.placement.balance import may_leave
from daemon.scheduler.pace import StreamPace
from daemon.scheduler.policies.base import LIMIT
from daemon.scheduler.queue import WaitingQueue, is_heavy
from daemon.scheduler.scheduler import Scheduler
from daemon.scheduler.slots import SlotTable
from daemon.state.request import State
from daemon.state.sequence import Sequence, Where
from daemon.wire.columns import Slots


def check_laws(core: Core) -> None:
    """Ledgers, places and orders, at this moment."""
    seats: Counter[int] = Counter()
    for instance in core.instances:
        _check_instance(core, instance, seats)
    _check_migrations(core)
    _check_pledges(core)
    for leader, followers in core.held_back.by_leader.items():
        assert leader in core.sequences
        for follower in followers:
            assert follower.state is State.WAITING and follower.slot < 0
            seats[follower.id] += 1
    once = Counter(dict.fromkeys(core.sequences, 1))
    assert seats == once, "a sequence in two places or none"
    assert len(core.held_back) == sum(map(len, core.held_back.by_leader.values()))
    _check_asked(core)
    check_nobody_idles(core)


def _check_asked(core: Core) -> None:
    """Whose step is due later is woken then; whose step was due, and who had none, is asked with
    the next event or rests. Balancing knows who waits where, but for those it will look at anew.
    """
    wakes = core._wakes
    for index, instance in enumerate(core.instances):
        wakes_s = wakes._due_s[index]
        if wakes_s != NEVER:
            assert wakes_s == instance.due_s and (wakes_s, index) in wakes._heap
            assert core.wake_at_s <= wakes_s
        elif instance.due_s != NEVER:
            assert instance.scheduler.rests or index in wakes._asked, "nobody asks it again"
    if len(core.instances) > 1:
        waiting = {index for index, one in enumerate(core.instances) if one.scheduler.waiting}
        assert core._balancer._givers ^ waiting <= core.touched


def check_views(core: Core) -> None:
    """The placement's cached view of an instance is what a new look would give."""
    for index in core.dispatch._views.keys() - core.touched:
        again = InstanceView(core.instances[index])
        for name, kept in vars(core.dispatch._views[index]).items():
            np.testing.assert_equal(kept, getattr(again, name), f"{name} of {index}")


def check_nothing_left(core: Core) -> None:
    """Everything came back: the Core is as it was before the first request."""
    assert core.idle and not core.held_back and not core.num_waiting
    for instance in core.instances:
        ledger = instance.scheduler.kv.pool.check()
        assert ledger.held == 0 and ledger.fenced == 0, ledger
        host = instance.scheduler.residency.space.pool.check()
        assert host.free == host.total, host
        assert instance.scheduler.slots.num_running == 0
        assert len(instance.scheduler.waiting) == 0
        assert instance.pool is instance.role, "its foreign work is done"
        assert instance.index not in core.migrator.pairs
    assert not core.migrator._staying


def _check_pledges(core: Core) -> None:
    """A sequence with a place elsewhere runs where its record says, and is counted once."""
    leaving, coming = Counter[int](), Counter[int]()
    for sequence, pledge in core.migrator.pledges.values():
        one = core.sequences[sequence]
        assert one.slot >= 0 and one.instance == pledge.source != pledge.target
        leaving[pledge.source] += 1
        coming[pledge.target] += 1
    for instance in core.instances:
        pace = instance.scheduler.pace
        assert (pace.num_leaving, pace.num_coming) == (
            leaving[instance.index],
            coming[instance.index],
        )


def _check_migrations(core: Core) -> None:
    """A moving sequence runs at its source, and one that left is expected elsewhere."""
    for migration in core.migrator.migrations.values():
        assert core.sequences[migration.sequence.id] is migration.sequence
        assert migration in core.migrator.migrations.leaving(migration.source)
        assert migration.sequence in core.migrator.migrations.coming(migration.target)
    for instance in core.instances:
        for migration in core.migrator.migrations.leaving(instance.index):
            assert core.migrator.migrations.get(migration.sequence.id) is migration
        for sequence in core.migrator.migrations.coming(instance.index):
            found = core.migrator.migrations.get(sequence.id)
            assert found is not None and found.target == instance.index
        residency = instance.scheduler.residency
        counts = {True: 0, False: 0}
        for one in residency.remote_kvs.by_id.values():
            assert core.sequences[one.id] is one
            remote_kv = one.residence.remote_kv
            assert remote_kv is not None and remote_kv.instance == instance.index
            assert remote_kv.blocks and remote_kv.kept_in is residency.remote_kvs
            counts[remote_kv.from_host] += len(remote_kv.blocks)
        assert counts == {
            False: residency.remote_kvs.num_blocks,
            True: residency.remote_kvs.num_places,
        }
        assert not residency.remote_kvs.fetches, "remote KV that nobody sends"
        coming = Counter(
            digest
            for one in core.migrator.transfers
            if one.target == instance.index and one.target_pool is not None
            for digest in one.digests
        )
        assert coming == residency.remote_kvs.coming
    _check_transfers(core)
    for sequence in core.sequences.values():
        remote_kv = sequence.residence.remote_kv
        if remote_kv is not None:
            assert (
                sequence.id
                in core.instances[remote_kv.instance].scheduler.residency.remote_kvs.by_id
            )


def _check_transfers(core: Core) -> None:
    """Those of a sequence, and those that came before their steps, are found among all."""
    transfers = core.migrator.transfers
    listed = [one for sequence in transfers._of for one in transfers.of(sequence)]
    assert sorted(one.number for one in listed) == sorted(transfers.open)
    assert all(one.sequence in transfers._of and not one.over for one in transfers)
    for source, early in enumerate(transfers._early):
        assert early == {
            one.number: one
            for one in transfers
            if one.source == source and one.num_right >= 0 and one.target_pool is not None
        }


def _moving_blocks(core: Core, instance: Instance, from_host: bool) -> list[int]:
    """The blocks of a pool that remote KV, transfers and snapshots own, once for each owner."""
    remote_kvs = [
        one.residence.remote_kv for one in instance.scheduler.residency.remote_kvs.by_id.values()
    ]
    owned = [one.blocks for one in remote_kvs if one is not None and one.from_host is from_host]
    for one in core.migrator.transfers:
        sends = one.source == instance.index and one.source_pool is not None
        if sends and one.from_host is from_host:
            owned.append(one.blocks)
        if one.target == instance.index and one.target_pool is not None and not from_host:
            owned.append(one.targets)
    if isinstance(instance.kv, SnapshotKV) and not from_host:
        owned.append(instance.kv.snapshots.owned)
    return [block for blocks in owned for block in blocks]


def _check_limits_reserved(scheduler: Scheduler) -> None:
    """A reservation covers the longest answer of its sequence."""
    kv, slots = scheduler.kv, scheduler.slots
    for slot in slots.order()[kv.reservations.among(slots.order())].tolist():
        longest = kv.blocks_for(slots.member(slot).limit)
        assert kv.reservations.most(slot) == longest, "a reservation that is not for the limit"


def _check_instance(core: Core, instance: Instance, seats: Counter[int]) -> None:
    scheduler = instance.scheduler
    kv, slots = scheduler.kv, scheduler.slots
    kv.pool.check()
    kv.reservations.check(kv.pool.num_available)
    kv.lending.check()
    if scheduler.policy.reserves == LIMIT:
        _check_limits_reserved(scheduler)
    order = in_order(slots)
    _check_host(core, instance)
    _check_swaps(scheduler)
    _check_sums(scheduler)
    _check_order(slots, order)
    if instance.state is not WorkerState.READY:
        _check_dead(scheduler)
    assert not scheduler.admission.started, "a start that nobody is told of"
    suspects = [one for one in (*slots.members, *scheduler.waiting) if one and one.strikes]
    assert {one.id for one in suspects} == {one.id for one in scheduler.suspects.members}
    assert len(suspects) == len(scheduler.suspects)
    assert sorted([*order.tolist(), *slots.vacant]) == list(range(slots.max_slots))
    used = [kv.table.blocks(slot) for slot in order.tolist()]
    used.append(_moving_blocks(core, instance, from_host=False))
    owners = np.bincount(np.concatenate([[], *used]).astype(int), minlength=kv.pool.num_blocks)
    assert np.array_equal(owners, kv.pool.owners()), "owners that are in no table"
    assert (kv.table.held[order] * kv.block_size >= slots.computed[order]).all()
    pages = np.array([kv.table.blocks(slot).size for slot in order.tolist()], np.int32)
    most = kv.blocks_of(kv.table.held[order] * kv.block_size)
    assert (kv.charged[order] <= np.minimum(pages, most)).all()
    assert kv.has_windows or (kv.charged[order] == pages).all()
    assert (slots.computed[order] <= slots.known[order]).all()
    assert (slots.delivered[order] <= slots.known[order]).all()
    assert slots.num_expected_tokens == sum(slots.expected[slot] for slot in order.tolist())
    assert not (slots.known[slots.vacant] >= slots.review_at[slots.vacant]).any()
    if instance.config.stages > 1:
        on_the_way = slots.known[order] - slots.delivered[order]
        assert (on_the_way <= 1).all(), "a pipeline draws a token before the one it follows"
    for slot in order.tolist():
        member = slots.member(slot)
        assert member.state is State.RUNNING and member.slot == slot
        assert member.instance == instance.index
        seats[member.id] += 1
    num_ranked = len(scheduler.waiting) - len(scheduler.waiting.unranked)
    keys = [one.order_key for one in islice(scheduler.waiting, num_ranked)]
    assert keys == sorted(keys)
    for one in scheduler.waiting:
        assert one.state in (State.WAITING, State.PREEMPTED) and one.slot < 0
        assert one.instance == instance.index
        seats[one.id] += 1
    waiting = sum(one.num_known_tokens for one in scheduler.waiting)
    assert scheduler.waiting.num_tokens == waiting
    kept = sum(one.residence.parked_tokens for one in scheduler.waiting)
    assert scheduler.waiting.num_uncomputed_tokens == waiting - kept
    _check_begun(scheduler.waiting, scheduler.pace)
    left = [one.left for one in scheduler.waiting]
    assert scheduler.waiting.left_steps == sum(one.steps for one in left)
    assert scheduler.waiting.left_work == sum(one.work for one in left)


def _check_begun(waiting: WaitingQueue, pace: StreamPace) -> None:
    """What is kept of waiting sequences that have begun: they are the streams that pause."""
    begun = [one for one in waiting if one.num_output_tokens > 0]
    assert waiting.num_begun == len(begun)
    assert waiting.begun_tokens == sum(one.expected_length for one in begun)
    assert {one.id for one in pace.waiting_longest(inf, 0.0)} == {one.id for one in begun}
    if begun and not waiting.unranked:
        assert waiting.first_begun is min(begun, key=lambda one: one.order_key)


def in_order(slots: SlotTable) -> Slots:
    """The slots' order, without making them bring it up to date, which may hide a fault."""
    twin = copy(slots)
    twin._new = list(slots._new)
    return twin.order()


def _check_order(slots: SlotTable, order: Slots) -> None:
    """Columns say what members say, and the order is that of their places."""
    members = [slots.member(slot) for slot in order.tolist()]
    assert [one.order_key for one in members] == sorted(one.order_key for one in members)
    assert slots.rank[order].tolist() == [one.rank for one in members]
    assert slots.arrival[order].tolist() == [one.arrival for one in members]
    assert slots.sequence[order].tolist() == [one.id for one in members]


def _check_swaps(scheduler: Scheduler) -> None:
    """Everybody's KV is where it says, and what is counted of them is true."""
    residency, running = scheduler.residency, {Where.DEVICE, Where.BOTH, Where.RETURNING}
    members = [one for one in scheduler.slots.members if one is not None]
    for one in members:
        assert one.residence.where in running
        if one.residence.where is not Where.RETURNING:
            assert (one.residence.where is Where.BOTH) == bool(one.residence.host_blocks)
    for one in scheduler.waiting:
        kept = Where.HOST if one.residence.host_blocks else Where.NOWHERE
        if one.residence.remote_kv is not None:
            kept = Where.AWAY
        assert one.residence.where is kept
        assert bool(one.residence.parked_tokens) == (kept is not Where.NOWHERE)
    for one in members:
        waits = one.residence.transfer
        assert bool(waits) <= (one.residence.where is Where.RETURNING)
    assert residency._held <= {one.slot for one in members}
    returning = {one.slot: one for one in members if one.residence.where is Where.RETURNING}
    assert residency._returning == returning
    parked = sum(len(one.residence.host_blocks) for one in scheduler.waiting)
    assert residency.num_parked_blocks == parked


def _check_dead(scheduler: Scheduler) -> None:
    """Nothing is left of a worker that died."""
    assert scheduler.kv.pool.num_blocks == scheduler.residency.space.pool.num_blocks == 0
    assert not scheduler.num_running and not scheduler.busy
    assert not scheduler.admission.left and not scheduler.admission.joined
    kept = (Where.NOWHERE, Where.AWAY)
    assert all(one.residence.where in kept for one in scheduler.waiting)
    assert not scheduler.residency.remote_kvs


def _check_host(core: Core, instance: Instance) -> None:
    """Host blocks have one owner each, and parked tokens lie in them."""
    scheduler = instance.scheduler
    space = scheduler.residency.space
    space.pool.check()
    running = [one for one in scheduler.slots.members if one is not None]
    kept = [one.residence.host_blocks for one in (*running, *scheduler.waiting)]
    kept.append(_moving_blocks(core, instance, from_host=True))
    named = [place for places in kept for place in places]
    owners = np.bincount(np.array(named, int), minlength=space.pool.num_blocks)
    assert np.array_equal(owners, space.pool.owners())
    for one in scheduler.waiting:
        parked = one.residence.parked_tokens
        if one.residence.remote_kv is None:
            assert parked <= scheduler.kv.tokens_of_moved(len(one.residence.host_blocks), parked)
        assert parked < max(1, one.num_known_tokens)


def check_nobody_idles(core: Core) -> None:
    """No instance has nothing to do while another has more waiting than it can seat, of whom the
    first that may leave could run there.
    """
    ready = [one for one in core.instances if one.state is WorkerState.READY and not one.drained]
    for idle in ready:
        scheduler = idle.scheduler
        if scheduler.num_running or scheduler.waiting or scheduler.suspects:
            continue
        if scheduler.kv.pool.ledger().held:  # remote KV: who is first may not fit, and goes first
            continue
        for other in ready:
            for one in _in_vain(other.scheduler):
                if idle.role is not other.role and not idle.suits(one):
                    continue
                if not may_leave(one) or idle.capacity_tokens < one.limit:
                    continue
                if not (one.num_output_tokens or scheduler.pace.may_begin(one, scheduler.kv)):
                    break  # where its answer would be decoded, its pace could not be kept
                plan = scheduler.admission.plan(one)
                lacking = scheduler.kv.num_lacking(plan.matched, plan.num_new_blocks)
                # Its answer may have no place yet where it will be decoded.
                may_begin = scheduler.pace.may_begin(one, scheduler.kv)
                assert lacking > 0 or not (may_begin or one.num_output_tokens), (
                    f"sequence {one.id} waits in vain at {other.index} while {idle.index} idles"
                )
                break  # nobody behind it is favoured


def _in_vain(scheduler: Scheduler) -> Iterator[Sequence]:
    """Those for whom there is no slot, or no memory when all that is fenced has come, beside what
    is spared for running sequences to grow into.
    """
    slots, kv = scheduler.slots, scheduler.kv
    order = in_order(slots)
    leaving = order[slots.computed[order] >= slots.known[order]]
    vacant = len(slots.vacant) + leaving.size
    blocks = kv.num_unreserved + scheduler.admission.coming(leaving)
    if slots.num_running:
        blocks -= scheduler.admission.num_spare
    for number, one in enumerate(scheduler.waiting):
        blocks -= scheduler.admission.plan(one).num_new_blocks
        if number >= vacant or blocks < 0 or (scheduler.suspects and not one.strikes):
            yield one


def _check_sums(scheduler: Scheduler) -> None:
    """The placement's view of all instances at once equals that of each one."""
    table, waiting = scheduler.slots, scheduler.waiting
    order = table.order()
    prompts = [table.member(slot).num_prompt_tokens for slot in order.tolist()]
    assert table.prompt[order].tolist() == prompts
    assert table.num_computed_tokens == table.computed[order].sum()
    known, ends = (column.tolist() for column in waiting.columns(1 << 30))
    assert known == [one.num_known_tokens for one in waiting]
    prompts = [one.num_prompt_tokens for one in waiting]
    assert (waiting.prompt_tokens, waiting.likely_tokens) == (sum(prompts), sum(ends))
    assert waiting.num_heavy == sum(map(is_heavy, prompts, ends))
