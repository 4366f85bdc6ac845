"""The iteration-level scheduler of one instance: add, remove, schedule, complete, lose.

Each step takes decodes and prompt chunks under a token budget, in the policy's order; when blocks
run out the last in that order gives way.
"""

from dataclasses import dataclass

import numpy as np

from daemon.batch import Batch
from daemon.cost.work import work_of
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import PROACTIVE
from daemon.request import FinishReason, State
from daemon.scheduler.answer import Answer
from daemon.scheduler.in_flight import InFlight, InFlightStep
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.queue import WaitingQueue
from daemon.scheduler.residency import Residency
from daemon.scheduler.seats import Seats
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import StepBuilder, chunk_of
from daemon.scheduler.suspects import Suspects
from daemon.sequence import Sequence
from daemon.story import What
from daemon.wire.columns import Bools, Int32, Slots, UInt8, int32

_LENGTH, _ERROR = np.uint8(FinishReason.LENGTH), np.uint8(FinishReason.ERROR)
_NO_SLOTS = np.zeros(0, np.intp)
_NONE = int32()
_NO_SEQUENCES = np.zeros(0, np.int64)


@dataclass(slots=True, frozen=True)
class Limits:
    """What a step may be at most."""

    max_running: int
    max_batch_tokens: int
    prefill_chunk: int
    stages: int = 1  # of a pipeline


class Scheduler:
    """One instance's queue, running slots and KV memory under one policy."""

    def __init__(
        self, instance: int, policy: Policy, limits: Limits, kv: KVCache, residency: Residency
    ) -> None:
        self.instance = instance
        self.seats = Seats(instance, policy, limits.max_running, kv, residency)
        self.in_flight = InFlight()
        self.suspects = Suspects()
        self._answered_step = 0
        self.limits = limits
        self._row_numbers = np.arange(limits.max_running, dtype=np.int32)
        self._row_numbers.flags.writeable = False  # answers show it, many at a time

    @property
    def policy(self) -> Policy:
        """Who goes first."""
        return self.seats.policy

    @property
    def slots(self) -> SlotTable:
        """Those that run."""
        return self.seats.slots

    @property
    def waiting(self) -> WaitingQueue:
        """Those that wait."""
        return self.seats.waiting

    @property
    def kv(self) -> KVCache:
        """The device's KV memory."""
        return self.seats.kv

    @property
    def residency(self) -> Residency:
        """Where the sequences' KV is."""
        return self.seats.residency

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return self.slots.num_running

    @property
    def busy(self) -> bool:
        """Whether a step or a swap copy is in flight."""
        return bool(len(self.in_flight) or self.residency.space.num_flying)

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence that is new here; one that waited elsewhere waits since then."""
        since_s = sequence.waiting_since_s if sequence.instance >= 0 else now
        self.suspects.meet(sequence)
        sequence.story.add(now, What.QUEUED, self.instance)
        self.residency.reserve.arrived(now, self.kv.blocks_for(sequence.num_prompt_tokens))
        self.seats.meet(sequence, since_s)

    def predict(self, sequence: Sequence, now: float) -> None:
        """A sequence's prediction has come: it may move in the order."""
        self.seats.now = now
        self.seats.foretold(sequence)

    def choose(self, policy: Policy, swap: str, now: float) -> None:
        """Change the policy and the swap mode; nobody loses anything but a place in the order."""
        self.seats.now = now
        self.seats.choose(policy)
        self.residency.mode = swap

    def remove(self, sequence: Sequence) -> None:
        """End a sequence at whatever stage; its blocks come back when no step names them."""
        if sequence.state is State.RUNNING:
            self.seats.retire([sequence.slot])
        else:
            self.waiting.remove(sequence)
            self.residency.forget(sequence)
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.suspects.leave(sequence)
        sequence.move(State.FINISHED)

    def withdraw(self, sequence: Sequence) -> None:
        """Give up a waiting sequence to another instance."""
        self.waiting.remove(sequence)
        self.suspects.leave(sequence)
        self.residency.forget(sequence)

    def lose(
        self, kv: KVCache, now: float, num_host_blocks: int = 0, copy_block_s: float = 0.0
    ) -> None:
        """The worker died or was born: all that ran waits again, for the empty memory `kv`."""
        seats = self.seats
        seats.now = now
        for slot in self.slots.order().tolist():
            seats.preempt(slot, None)
        seats.kv = kv
        seats.residency.reset(seats.waiting, num_host_blocks, copy_block_s)
        seats.left.clear()
        seats.joined.clear()
        self.in_flight = InFlight()

    def copied(self, step: int, now: float) -> None:
        """Every swap copy of the plans up to `step` has ended."""
        self.kv.pool.copies_done(step)
        self.residency.on_copied(step, now)

    def schedule(self, now: float) -> Batch | None:
        """The next step, or None when there is nothing that can run or move now."""
        seats = self.seats
        policy, residency = seats.policy, seats.residency
        seats.now, seats.num_promised = now, 0
        if policy.promotes:
            seats.promote()
        step = StepBuilder(self.limits.max_batch_tokens, seats.slots)
        suspect = self.suspects.first
        if suspect is not None and self.in_flight:
            return None
        alone = seats.take_in(suspect) if suspect is not None else -1
        self._fill(step, alone)
        if step.empty and alone >= 0:  # its KV is on its way, or it had to give way
            self._fill(step, -1)
        if residency.mode == PROACTIVE:
            residency.copy_ahead(seats.slots, seats.kv, seats.step + 1, seats.pace.mean_s, now)
        slots, counts = step.rows()
        if not slots.size and not residency.space.has_orders:
            return None
        batch = self._emit(slots, counts)
        if step.prompts:
            seats.settle(step.prompts, step.chunks)
        return batch

    def complete(self, step: int, reasons: UInt8) -> Answer | None:
        """Take a step's answer; None if it is not the one awaited."""
        flown = self.in_flight.answer(step)
        if flown is None:
            return None
        if reasons.size != flown.slots.size:
            raise ValueError(f"step {step}: {reasons.size} answers for {flown.slots.size} rows")
        self._answered_step = step
        self.kv.pool.step_done(step)
        answer = self._deliver(flown, reasons)
        if self.suspects:
            self.suspects.acquit(answer.sequences.tolist())
        return answer

    # Filling a step

    def _fill(self, step: StepBuilder, alone: int) -> None:
        """Rows in the policy's order; where `alone` is a slot, it is the only one."""
        decodes, prompts = self._runnable(alone)
        if self.policy.prefill_alone:
            self._continue_prompts(step, prompts)
            self._admit(step)
            if step.empty:
                self._decode(step, decodes)
        else:
            self._decode(step, decodes)
            prompts, behind = self._parted(prompts)
            self._continue_prompts(step, prompts)
            epochs = self.slots.epoch[behind]
            self._admit(step)
            if behind.size:  # of these some may have given way, and others have their slots
                self._continue_prompts(step, behind[self.slots.epoch[behind] == epochs])

    def _runnable(self, alone: int) -> tuple[Slots, Slots]:
        """Running slots with one token to compute, and those with more, in order."""
        table = self.slots
        seats = self.seats
        if seats.policy.reviews:
            seats.review()
        order = seats.residency.on_device(table.order())
        if alone >= 0:
            order = order[order == alone]
        pending = table.known[order] - table.computed[order]
        decoding = pending == 1
        if self.limits.stages > 1:
            return self._stage_share(order, decoding), order[pending > 1]
        if np.count_nonzero(decoding) == order.size:
            return order, _NO_SLOTS
        return order[decoding], order[pending > 1]

    def _parted(self, slots: Slots) -> tuple[Slots, Slots]:
        """Those that rank before the first that waits, and those behind it: a short prompt does
        not wait until a long one is computed.
        """
        seats = self.seats
        if not (slots.size and seats.policy.displaces and self.waiting):
            return slots, _NO_SLOTS
        slots = slots[self.slots.sequence[slots] >= 0]  # without those that gave way to a decode
        shift = seats.now if seats.policy.counts_down else 0.0
        behind = self.slots.rank[slots] > self.waiting.first.rank + shift
        return slots[~behind], slots[behind]

    def _stage_share(self, order: Slots, decoding: Bools) -> Slots:
        """A pipeline's stages work on distinct sequences: decodes whose last token is still on its
        way wait for it, and a step takes at most its stage's share of all that run.
        """
        ready = decoding & (self.slots.last_step[order] <= self._answered_step)
        return order[ready][: -(-order.size // self.limits.stages)]

    def _decode(self, step: StepBuilder, slots: Slots) -> None:
        """Every decode that the budget and the memory carry."""
        slots = slots[: step.budget]
        short = self.kv.short(slots, self.slots.computed[slots])
        if short.size <= self.kv.pool.num_available:
            if short.size:
                self.kv.grow_each(short)
            step.add_decodes(slots)
            return
        waiting = self.seats.grow_by_force(short)
        stay = self.slots.sequence[slots] >= 0
        step.add_decodes(slots[stay & ~np.isin(slots, waiting)])

    def _continue_prompts(self, step: StepBuilder, slots: Slots) -> None:
        """Further chunks of prompts that have started; their blocks are theirs already."""
        for slot in slots.tolist():
            if self.slots.members[slot] is not None:
                pending = int(self.slots.known[slot] - self.slots.computed[slot])
                if count := self._chunk(step, pending, self.slots.member(slot).prompt_cost):
                    step.add_prompt(slot, count)

    def _chunk(self, step: StepBuilder, pending: int, cost: int) -> int:
        """Tokens of a prompt with `pending` to go that this step takes; 0 for none."""
        chunk, first = self.limits.prefill_chunk, not step.prompts
        return chunk_of(pending, cost, self.policy, chunk, step.budget, first)

    # Admission

    def _admit(self, step: StepBuilder) -> None:
        """Seat waiting sequences while budget, slots and memory last, in order."""
        seats = self.seats
        if self.suspects or (seats.policy.gang and not seats.forming):
            return
        while self.waiting and step.budget > 0:
            sequence = self.waiting.first
            if self.slots.full and not seats.may_displace(sequence):
                return
            place = seats.place_of(sequence)
            pending = sequence.num_known_tokens - place.num_shared_tokens
            count = self._chunk(step, pending, sequence.prompt_cost)
            if not count or not seats.make_room(sequence, place):
                return
            slot = seats.seat(sequence, place)
            if not self.residency.is_returning(sequence):
                step.add_prompt(slot, count)

    # Sending and answering

    def _emit(self, slots: Slots, counts: Int32) -> Batch:
        """Turn rows into the plan, and count its tokens as computed."""
        seats = self.seats
        seats.step += 1
        table = self.slots
        starts = table.computed[slots]
        ends = starts + counts
        known = table.known[slots]
        samples = ends == known
        fed = starts < table.fed_until[slots]
        finals = ends == table.last_position[slots]
        table.computed[slots] = ends
        table.known[slots] = known + (samples ^ finals)
        table.last_step[slots] = seats.step
        joined, sequences = _NONE, _NO_SEQUENCES
        if seats.joined:
            joined = int32(seats.joined)
            sequences = table.sequence[joined]
        awaits = seats.residency.awaited(seats.step)
        batch = Batch(
            self.instance,
            seats.step,
            slots.astype(np.int32),
            starts,
            counts,
            samples.view(np.uint8),
            fed.view(np.uint8),
            *seats.kv.table.take_changes(),
            *seats.kv.take_copies(),
            int32(seats.left) if seats.left else _NONE,
            joined,
            sequences,
            *seats.residency.space.take_orders(seats.step),
            awaits=awaits,
        )
        seats.left.clear()
        seats.joined.clear()
        self._remember(batch, slots, samples, finals)
        return batch

    def _remember(self, batch: Batch, slots: Slots, samples: Bools, finals: Bools) -> None:
        """Keep what the step's answer will be read with."""
        table = self.slots
        fed = batch.fed.view(bool)
        firsts = slots[samples & fed] if np.count_nonzero(fed) else _NO_SLOTS
        if np.count_nonzero(samples) == slots.size:
            rows = slots
        else:
            rows, finals = slots[samples], finals[samples]
        self.in_flight.add(
            InFlightStep(
                batch.step,
                rows,
                table.epoch[rows],
                firsts,
                finals,
                table.departures,
                work_of(batch),
            )
        )

    def _deliver(self, flown: InFlightStep, reasons: UInt8) -> Answer:
        """Count the tokens of rows that are still the same sequence's, and end those that end."""
        table = self.slots
        slots = flown.slots
        why = reasons
        if np.count_nonzero(flown.finals):
            why = np.where(reasons != 0, reasons, flown.finals * _LENGTH)
        rows = self._row_numbers[: slots.size]
        if table.departures != flown.departures:
            rows = rows[table.epoch[slots] == flown.epochs]
            slots, why = slots[rows], why[rows]
        table.delivered[slots] += 1
        sequences = table.sequence[slots]
        ends = bool(np.count_nonzero(why))
        if ends:
            self._fail(slots[why == _ERROR])
        first = [
            member
            for slot in flown.firsts.tolist()
            if (member := table.members[slot]) is not None
            and member.first_token_s < 0.0
            and table.delivered[slot] > member.num_prompt_tokens
        ]
        if not ends:
            return Answer(rows, sequences, why, first, [], [], flown.work)
        ending = why != 0
        ended = self.seats.retire(slots[ending].tolist())
        for sequence in ended:
            self._end(sequence)
        return Answer(rows, sequences, why, first, ended, why[ending].tolist(), flown.work)

    def _fail(self, slots: Slots) -> None:
        """These rows failed: they have no token, and what they computed is offered to nobody."""
        self.slots.delivered[slots] -= 1
        for slot in slots.tolist():
            self.kv.forget(self.slots.member(slot))
