"""Admission of one instance: sequences get slots and blocks, are preempted, and are retired."""

from collections.abc import Iterator
from itertools import chain, islice

import msgspec
import numpy as np

from daemon.memory.kv_cache import NOTHING_CACHED, KVCache, Match
from daemon.scheduler.decode_admission import DecodeAdmission
from daemon.scheduler.displacement import Displacement
from daemon.scheduler.order import Order, PredictedRoom
from daemon.scheduler.pace import StreamPace
from daemon.scheduler.policies.base import LIMIT, NOTHING, PROMPTS_ALONE
from daemon.scheduler.preemption_stats import PreemptionStats
from daemon.scheduler.residency import Residency
from daemon.scheduler.suspects import Suspects
from daemon.scheduler.uploads import MOST_CANDIDATES
from daemon.state.batch import Batch
from daemon.state.pause import Cause, cause_of
from daemon.state.remote_kv import RemoteKV
from daemon.state.request import State
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import Int32, Slots, UInt8, int32

_NONE = int32()
_RUNNING = State.RUNNING  # to look it up in its enum takes as long as a call
_NO_SEQUENCES = np.zeros(0, np.int64)


class AdmissionPlan(msgspec.Struct, frozen=True):
    """The plan of one admission: its blocks, and the source of its computed tokens."""

    leader: int  # slot whose prompt it shares, or -1
    matched: list[int]  # device blocks of its prefix to share
    num_shared_tokens: int  # already computed: by the leader, in the cache, or in host memory
    num_blocks: int  # in all
    num_reusable: int  # blocks that another sequence or the cache has
    num_reserved: int = 0  # blocks of its reservation; 0: none
    fetches: bool = False  # blocks have to come from host memory
    num_ahead: int = 0  # the last of the matched blocks, which were uploaded ahead
    num_named: int = 0  # blocks of its tokens that are in the cache already
    recent: tuple[int, ...] = ()  # as `Match.recent`
    num_beside: int = 0  # blocks of `num_blocks` that no reservation counts
    adopts: bool = False  # the matched blocks are the first of its KV moved here
    copies: bool = False  # the next plan copies for it what others hold
    has_states: bool = False  # a snapshot of them is cached, and is kept until it is copied
    num_seen: int = 0  # as `Match.num_seen`

    @property
    def num_new_blocks(self) -> int:
        """Blocks that have to be available for it: to be allocated, or reserved."""
        reserved = self.num_reserved
        num_blocks = self.num_blocks
        if reserved:
            num_blocks = max(num_blocks, reserved + self.num_beside)
        return num_blocks - self.num_reusable

    @property
    def what(self) -> str:
        """The source of its computed tokens, as a mark of a story."""
        if self.leader >= 0:
            return What.SHARED
        return What.FETCHED if self.fetches else What.ADMITTED


class Admission:
    """Admits, preempts and retires sequences: it gives them slots and blocks, and takes them back.

    `step` is the newest plan; changes here belong to the plan after it.
    """

    def __init__(self, order: Order, kv: KVCache, residency: Residency, decodes: str) -> None:
        self.order = order
        self.slots = order.slots
        self.waiting = order.waiting
        self.kv = kv
        self.residency = residency
        self.pace = StreamPace(order, residency)
        self.displacement = Displacement(order, residency, self.pace)
        self.decode_admission = DecodeAdmission(decodes, order)
        self.predicted_room = PredictedRoom(order)
        self.suspects = Suspects()
        self.step = 0
        self.answered_step = 0  # the newest that has answered
        self.left: list[int] = []  # slots vacated since the newest plan
        self.joined: list[int] = []  # slots taken since then
        self.num_promised = 0  # coming blocks that decodes of this plan wait for
        # Sequences admitted for the first time, with their cached tokens.
        self.started: list[tuple[Sequence, int]] = []
        self.stats = PreemptionStats()

    def reset(
        self, kv: KVCache, now: float, num_host_blocks: int = 0, copy_block_s: float = 0.0
    ) -> None:
        """Replace the memory by the empty `kv`, as a worker died or began; all wait again."""
        for slot in self.slots.order().tolist():
            self.preempt(slot, None, now)
        self.kv = kv
        self.residency.reset(self.waiting, num_host_blocks, copy_block_s)
        self.left.clear()
        self.joined.clear()
        self.predicted_room.unsettle()

    def next_batch(
        self, slots: Int32, starts: Int32, counts: Int32, samples: UInt8, fed: UInt8
    ) -> Batch:
        """The next plan, of these rows and of all changes since the plan before."""
        self.step = self.kv.newest_step = step = self.step + 1
        left = joined = _NONE
        sequences = _NO_SEQUENCES
        if self.joined:
            joined = int32(self.joined)
            sequences = self.slots.sequence[joined]
            self.joined.clear()
        if self.left:
            left = int32(self.left)
            self.left.clear()
        table_slots, table_indices, table_blocks = self.kv.table.take_changes()
        copy_sources, copy_targets = self.kv.take_copies()
        orders = self.residency.take_orders(step)
        out_blocks, out_places, in_places, in_blocks, awaits = orders
        return Batch(
            instance=self.order.instance,
            step=step,
            slots=slots,
            starts=starts,
            counts=counts,
            samples=samples,
            fed=fed,
            table_slots=table_slots,
            table_indices=table_indices,
            table_blocks=table_blocks,
            copy_sources=copy_sources,
            copy_targets=copy_targets,
            left_slots=left,
            joined_slots=joined,
            joined_sequences=sequences,
            out_blocks=out_blocks,
            out_places=out_places,
            in_places=in_places,
            in_blocks=in_blocks,
            awaits=awaits,
        )

    # Planning an admission

    def plan(self, sequence: Sequence) -> AdmissionPlan:
        """The plan of admitting a waiting sequence now."""
        kv = self.kv
        known = sequence.num_prompt_tokens + sequence.num_output_tokens
        num_blocks = kv.blocks_to_begin(known) if kv.has_windows else -(-known // kv.block_size)
        num_beside = num_blocks - kv.blocks_for(known) if kv.has_windows else 0
        reserved = kv.blocks_for(sequence.limit) if self.order.policy.reserves == LIMIT else 0
        if sequence.leader is not None and (leader := self._leader_slot(sequence)) >= 0:
            shared = sequence.num_prompt_tokens - 1
            return AdmissionPlan(
                leader=leader,
                matched=[],
                num_shared_tokens=shared,
                num_blocks=num_blocks,
                num_reusable=kv.blocks_to_share(shared),
                num_reserved=reserved,
                num_named=shared // kv.block_size,
                num_beside=num_beside,
                copies=True,
            )
        remote_kv = sequence.residence.remote_kv
        # KV that came back to this instance never left the pool.
        if remote_kv is not None and remote_kv.instance == self.order.instance:
            return self._adopting(remote_kv, num_blocks, num_beside, reserved)
        hashes = sequence.hashes
        match = kv.cached(hashes, known)
        if match.states and len(match.states) + max(num_blocks, reserved) > kv.pool.num_blocks:
            match = NOTHING_CACHED  # the pool does not hold both
        matched, num_named = match.blocks, match.num_blocks
        num_tokens, num_ahead, fetches, adopts = num_named * kv.block_size, 0, False, False
        if (parked := sequence.residence.parked_tokens) > num_tokens:
            if adopts := kv.has_windows:  # it goes on behind all that is parked
                matched, num_named = kv.cached_to_move(hashes, known, parked), 0
                match = NOTHING_CACHED
            if remote_kv is None:
                ahead = self.residency.uploads.found(sequence, len(matched), kv)
                num_ahead, matched = len(ahead), matched + ahead
            num_tokens = kv.tokens_of_moved(len(matched), parked)
            if fetches := parked > num_tokens:
                num_tokens = parked
        return AdmissionPlan(
            leader=-1,
            matched=matched,
            num_shared_tokens=num_tokens,
            num_blocks=num_blocks,
            num_reusable=len(matched) - len(match.states),
            num_reserved=reserved,
            fetches=fetches,
            num_ahead=num_ahead,
            num_named=num_named,
            recent=match.recent,
            num_beside=num_beside,
            copies=bool(match.recent or match.states),
            adopts=adopts,
            has_states=bool(match.states),
            num_seen=match.num_seen,
        )

    def _adopting(
        self, remote_kv: RemoteKV, num_blocks: int, num_beside: int, num_reserved: int
    ) -> AdmissionPlan:
        """The plan of a sequence that takes over what it left in this pool."""
        num_adopted = self.kv.num_adopted(remote_kv.blocks, remote_kv.num_tokens)
        return AdmissionPlan(
            leader=-1,
            matched=remote_kv.blocks,
            num_shared_tokens=remote_kv.num_tokens,
            num_blocks=num_blocks,
            num_reusable=num_adopted,
            num_reserved=num_reserved,
            num_named=remote_kv.num_tokens // self.kv.block_size,
            num_beside=num_beside,
            adopts=True,
            copies=num_adopted < len(remote_kv.blocks),
        )

    def _leader_slot(self, sequence: Sequence) -> int:
        """The slot of the running stream whose computed prompt this one can share, or -1."""
        leader = sequence.leader
        if leader is None or leader.slot < 0 or leader.instance != self.order.instance:
            return -1
        if self.residency.is_returning(leader):
            return -1
        computed = self.slots.computed[leader.slot] >= sequence.num_prompt_tokens
        fresh = not sequence.num_output_tokens and not sequence.residence.parked_tokens
        if not (computed and fresh):
            return -1
        can_fork = self.kv.can_fork(leader.slot, sequence.num_prompt_tokens - 1)
        return leader.slot if can_fork else -1

    @property
    def _gang_open(self) -> bool:
        """Whether a gang may still grow: no running sequence has more than its first token."""
        order = self.slots.order()
        return bool((self.slots.known[order] <= self.slots.fed_until[order] + 1).all())

    @property
    def closed(self) -> bool:
        """Whether none may join the running sequences: there are suspects, the gang is full, or
        some run without the reservation that the policy wants.
        """
        if self.suspects.members:
            return True
        policy = self.order.policy
        if policy.reserves == LIMIT and not self.all_reserved:
            return True
        return policy.gang and not self._gang_open

    def may_join(self) -> bool:
        """Whether sequences may join, once running ones have the policy's reservations."""
        policy = self.order.policy
        if policy.reserves == LIMIT or policy.gang or self.suspects.members:
            self.reserve_running()
            return not self.closed
        return True

    @property
    def all_reserved(self) -> bool:
        """Whether all running sequences have a reservation."""
        return self.kv.reservations.num_slots == self.slots.num_running

    def reserve_running(self) -> None:
        """Reserve for running sequences without a reservation, in order, while there is room, if
        the policy reserves at admission: they were admitted under another one.
        """
        if self.order.policy.reserves == LIMIT and not self.all_reserved:
            for slot in self.slots.order().tolist():
                if not self.kv.reservations.has(slot):
                    num_blocks = self.kv.blocks_for(self.slots.member(slot).limit)
                    if num_blocks - int(self.kv.charged[slot]) > self.kv.num_unreserved:
                        return
                    self.kv.reservations.reserve(slot, num_blocks)

    @property
    def num_spare(self) -> int:
        """Blocks that are kept for running sequences to grow into, where none are reserved."""
        return 0 if self.order.policy.reserves == LIMIT else self.kv.num_spare

    def coming(self, leaving: Slots) -> int:
        """Blocks that get free without a preemption and are not promised: fenced ones, and those
        that only the `leaving` slots have.
        """
        num_held = sum(self.kv.num_own(slot) for slot in leaving.tolist())
        return self.kv.pool.num_fenced + num_held - self.num_promised

    def _lacking(self, plan: AdmissionPlan, due: bool = False) -> int:
        """Blocks that a plan needs beyond the available ones, or <= 0; a few are spared for running
        sequences, unless it is of a stream whose pause has to end: all streams that come due
        together had the pool together, to the last block.
        """
        slots, needed = self.slots, plan.num_new_blocks
        if not due and len(slots.vacant) < slots.max_slots:
            needed += self.num_spare
        return self.kv.num_lacking(plan.matched, needed)

    def next_waiting(self, now: float) -> Sequence | None:
        """The next waiting sequence to admit; None: none may be admitted now."""
        if not (self.slots.vacant or self.order.policy.displaces):
            return None
        if self.suspects.members:
            return self.waiting.first
        first = self._first_ready() if self.residency.remote_kvs.coming else self.waiting.first
        if first is None or not self.pace.max_pause_s:
            return first
        return self.pace.next(first, self.kv, now)

    def next_to_return(self) -> Iterator[Sequence]:
        """The sequences that may get a slot next: streams as they come due, then in order."""
        return chain(self.pace.next_due(), islice(self.waiting, MOST_CANDIDATES))

    def _first_ready(self) -> Sequence | None:
        """The first sequence that waits for no block of another's transfer; None if all do."""
        return next((first for first in self.waiting if not self._awaits_other(first)), None)

    def _awaits_other(self, sequence: Sequence, plan: AdmissionPlan | None = None) -> bool:
        """Whether another transfer brings the first block that a waiting sequence lacks."""
        if not (sequence.residence.parked_tokens and self.residency.remote_kvs.coming):
            return False
        plan = plan or self.plan(sequence)
        names, number = self.kv.names_of(sequence.hashes), len(plan.matched)
        is_named = plan.fetches and number < len(names)
        return is_named and names[number] in self.residency.remote_kvs.coming

    def is_stuck(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence surely lacks blocks, even before running ones grow."""
        policy, kv = self.order.policy, self.kv
        if policy.displaces or policy.reserves != NOTHING or kv.reservations.num_slots:
            return self.predicted_room.settled
        if kv.pool.num_available >= kv.blocks_for(sequence.num_known_tokens) + self.num_spare:
            return False
        return self._lacking(self.plan(sequence)) > 0

    # Displacement

    def may_displace(self, sequence: Sequence, now: float) -> bool:
        """Whether a running sequence may be preempted for this one."""
        return bool(self._giving_way(sequence, 1, now))

    def _giving_way(self, sequence: Sequence, num_blocks: int, now: float) -> list[int]:
        """Slots that together give `num_blocks`, and may be preempted for a sequence; or none."""
        return self.displacement.for_one(sequence, num_blocks, self.kv, self.joined, now)

    def make_room(self, sequence: Sequence, plan: AdmissionPlan, now: float) -> bool:
        """Preempt others if the policy says so; whether a slot and the blocks are available then.

        No sequence is preempted for blocks that come anyway, only for those lacking beyond them. A
        sequence that lacks room for decodes alone takes another's place, as if it lacked a slot; a
        stream whose pause has to end needs none.
        """
        due = sequence.paused_since_s >= 0.0 and self.pace.due(now) is sequence
        if plan.fetches and not due and self._awaits_other(sequence, plan):
            return False
        lacking = self._lacking(plan, due)
        if lacking <= 0 and self.slots.vacant:
            if self.decode_admission.is_greedy:
                return True
            asked = sequence, plan.matched, plan.num_reusable, self.kv
            if due or self.decode_admission.admits(*asked):
                return True
        if lacking > 0 and not self.slots.num_running and not self.kv.pool.num_fenced:
            self.residency.remote_kvs.give_up(lacking, sequence)  # nothing else ever makes room
            return self._lacking(plan, due) <= 0
        leaving = self.slots.leaving()
        if lacking > 0:
            beyond = lacking - self.coming(leaving) + self.kv.pool.fenced_among(plan.matched)
        else:
            beyond = 0 if leaving.size else 1  # it lacks a slot alone
        if beyond <= 0:
            return False
        giving_way = self._giving_way(sequence, beyond, now)
        for slot in giving_way:
            self.preempt(slot, What.GAVE_WAY, now, sequence.id)
        return bool(giving_way) and not self.slots.full and self._lacking(plan, due) <= 0

    # Admitting

    def try_admit(self, sequence: Sequence, now: float) -> int:
        """The slot of a sequence that runs already or can be admitted now; else -1."""
        if sequence.slot >= 0:
            return sequence.slot
        plan = self.plan(sequence)
        return self.admit(sequence, plan, now) if self.make_room(sequence, plan, now) else -1

    def admit(self, sequence: Sequence, plan: AdmissionPlan, now: float) -> int:
        """Give a waiting sequence a slot and its blocks; returns the slot."""
        waiting, order, kv = self.waiting, self.order, self.kv
        waiting.remove(sequence)
        if waiting.unranked and not waiting.any_ranked:
            order.rank_some(now)
        sequence.rank = order.running_rank(sequence, now)
        leader, num_shared = plan.leader, plan.num_shared_tokens
        slot = self.slots.join(sequence, num_shared)
        known = sequence.num_prompt_tokens + sequence.num_output_tokens
        if leader >= 0:
            kv.fork(leader, slot, num_shared, known)
            self.slots.last_step[leader] = self.step + 1
        elif plan.adopts:
            kv.adopt(slot, plan.matched, num_shared, known)
        else:
            if plan.has_states:
                kv.read_states(slot, sequence.hashes, plan.num_named)
            kv.allocate(slot, Match(plan.matched, plan.num_named, plan.recent), known, num_shared)
        if kv.has_states:
            kv.begin_states(slot, sequence, num_shared, plan.num_seen)
        if plan.num_ahead:
            self.residency.uploads.take(plan.matched[-plan.num_ahead :], kv.pool)
        if plan.num_reserved:
            kv.reservations.reserve(slot, plan.num_reserved)
        sequence.move(_RUNNING)
        sequence.num_sealed_blocks = plan.num_named
        self.joined.append(slot)
        pace, residence = self.pace, sequence.residence
        moves_s = 0.0
        if sequence.num_output_tokens or residence.host_blocks:
            moves_s = self.residency.moves_s(sequence, known - num_shared, order.step_time)
        pace.resume(sequence, now, moves_s)
        fetches = plan.fetches
        fetch_from = len(plan.matched) if fetches else -1
        self.residency.admit(sequence, kv, fetch_from, self.step + 1, order.step_time, now)
        if plan.copies:
            self.residency.await_plan(sequence)
            if leader < 0:
                self.slots.last_step[slot] = self.step + 1
        if fetches or leader >= 0:
            self.stats.swaps_in += fetches and residence.remote_kv is None
            self._note_source(sequence, plan, now)
        else:
            sequence.story.add(now, What.ADMITTED, num_shared)
        if pace.max_pause_s and pace.elsewhere is not None and not sequence.num_output_tokens:
            pace.elsewhere.began(sequence)
        if not sequence.started:
            sequence.started = True
            self.started.append((sequence, num_shared))
        return slot

    def _note_source(self, sequence: Sequence, plan: AdmissionPlan, now: float) -> None:
        """Add the source of its computed tokens to its story."""
        what, other, remote_kv = plan.what, -1, sequence.residence.remote_kv
        if plan.leader >= 0:
            other = self.slots.member(plan.leader).id
        elif plan.fetches and remote_kv is not None:
            what, other = What.FOLLOWED, remote_kv.instance
        sequence.story.add(now, what, plan.num_shared_tokens, other)
        if plan.fetches and not self.residency.is_returning(sequence):  # its first step awaits it
            sequence.story.add(now, What.RESTORED)

    def seal(self, slot: int) -> Sequence:
        """Name a running sequence's full blocks for the prefix cache, unless it is returning;
        returns the sequence.
        """
        sequence = self.slots.member(slot)
        is_unnamed = sequence.num_sealed_blocks < len(sequence.hashes)
        if is_unnamed and not self.residency.is_returning(sequence):
            self.kv.seal(sequence, self.slots.computed.item(slot))
        return sequence

    # Preemption and leaving

    def grow_or_preempt(self, slots: Slots, now: float) -> list[int]:
        """Append a block to each of these slots, in order.

        Where none is available, a coming block is promised to the slot. Once all of them are
        promised, the last sequence in the order is preempted, the slot's own if it is the last;
        none with a reservation. Returns the slots that wait for a promised block.
        """
        table = self.slots
        waiting: list[int] = []
        num_promised = 0
        coming = self.coming(table.leaving()) - self.kv.pool.num_fenced
        for slot in slots.tolist():
            while table.members[slot] is not None:
                if slot in table.giving_way:
                    waiting.append(slot)
                    break
                if self.kv.can_append(grown := np.array([slot])):
                    self.kv.append_each(grown)
                    break
                wanted = self.kv.num_to_append(slot)
                if coming + self.kv.pool.num_fenced >= num_promised + wanted:
                    waiting.append(slot)
                    num_promised += wanted
                    break
                victim = self.displacement.for_growth(self.kv, now)
                alone = victim == slot and table.num_running == 1
                if alone and self.residency.remote_kvs.give_up(
                    wanted, table.member(slot), patient=False
                ):
                    continue
                self.preempt(victim, What.OUT_OF_BLOCKS, now, table.member(slot).id)
                if table.giving_way:
                    coming = self.coming(table.leaving()) - self.kv.pool.num_fenced
        self.num_promised += num_promised
        return waiting

    def preempt(self, slot: int, why: str | None, now: float, by: int = -1) -> None:
        """Preempt a running sequence for the sequence `by`, or since its worker is gone (`why`
        None); KV that is not kept is computed again.

        States cannot be cut back to what was delivered. Where they would be kept, their sequence
        leaves once its steps in flight have answered, and no further step computes it.
        """
        table, stats = self.slots, self.stats
        sequence = table.member(slot)
        kept = why is not None and self.residency.keeps(sequence)
        if why is not None and kept and self.kv.has_states and table.is_ahead(slot):
            table.giving_way[slot] = why, by
            return
        num_computed = int(table.computed[slot])
        num_valid = min(num_computed, int(table.delivered[slot]) - 1)
        self.seal(slot)
        if why is None:
            self.residency.lose(sequence)
        else:
            step_time, alone = self.order.step_time, self.order.policy.filler == PROMPTS_ALONE
            recompute_s = step_time.prefill_s if alone else step_time.chunk_s
            self.residency.park(sequence, num_valid, table, self.kv, self.step + 1, recompute_s)
        self._vacate([slot])
        parked = sequence.residence.parked_tokens
        stats.preemptions += 1
        stats.swaps_out += parked > 0
        lost = max(0, num_computed - parked)
        stats.recomputed_tokens += lost
        sequence.preemptions += 1
        sequence.recomputed_tokens += lost
        if sequence.num_output_tokens:
            sequence.preemptions_after_first += 1
        if self.pace.elsewhere is not None:
            self.pace.elsewhere.stays(sequence)
        if why is not None:
            sequence.story.add(now, why, parked, by)
        sequence.pause(now, cause_of(parked, why is None))
        sequence.move(State.PREEMPTED)
        self.order.requeue(sequence, now)
        self.pace.pause(sequence)

    def preempt_answered(self, now: float) -> None:
        """Preempt the sequences that give way and whose steps in flight have answered."""
        for slot, (why, by) in list(self.slots.giving_way.items()):
            if not self.slots.is_ahead(slot):
                self.preempt(slot, why, now, by)

    def depart(self, slot: int, now: float, target: int) -> Sequence:
        """Empty the slot of a sequence that migrates; its KV stays in the pool as remote KV. No
        step in flight computes it.
        """
        table = self.slots
        sequence = table.member(slot)
        self.seal(slot)
        num_computed = int(table.computed[slot])
        num_valid = min(num_computed, int(table.delivered[slot]) - 1)
        if self.kv.has_states and num_valid < num_computed:
            num_valid = 0  # its states are those of a later token
        # Without a step of its own, it may share blocks that are still being computed.
        answered = bool(table.last_step[slot] > 0)
        self.residency.leave_remote_kv(sequence, num_valid, self.kv, is_computed=answered)
        self._leave([slot])
        sequence.pause(now, Cause.MOVED)
        sequence.waiting_since_s = now
        sequence.move(State.PREEMPTED)
        sequence.story.add(now, What.LEFT, num_valid, target)
        return sequence

    def let_go(self, sequence: Sequence) -> None:
        """Stop watching a sequence, as it ends or migrates."""
        if sequence.strikes:
            self.suspects.remove(sequence)
        self.pace.forget(sequence)

    def retire(self, slots: list[int]) -> list[Sequence]:
        """Empty the slots of ended sequences; returns the sequences."""
        for slot in slots:
            self.residency.forget(self.seal(slot))
        return self._vacate(slots)

    def _vacate(self, slots: list[int]) -> list[Sequence]:
        """Empty these slots, with all their blocks at once; returns the sequences."""
        last_step = max([self.slots.last_step.item(slot) for slot in slots])
        self.kv.release(slots, last_step)
        return self._leave(slots)

    def _leave(self, slots: list[int]) -> list[Sequence]:
        """Empty these slots, which have no blocks; returns the sequences."""
        joined = self.joined
        for slot in slots:
            if joined and slot in joined:
                self.joined.remove(slot)
            else:
                self.left.append(slot)
        return [self.slots.leave(slot) for slot in slots]
