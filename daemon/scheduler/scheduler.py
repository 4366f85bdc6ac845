"""The iteration-level scheduler of one instance: add, remove, schedule, complete, lose.

Each step takes decodes and prompt chunks under a token budget, in the policy's order; when blocks
run out the last in that order is preempted and later recomputed.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from daemon.batch import Batch
from daemon.cost.work import work_of
from daemon.memory.kv_cache import KVCache
from daemon.request import FinishReason, State
from daemon.scheduler.answer import Answer
from daemon.scheduler.in_flight import InFlight, InFlightStep
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.queue import WaitingQueue
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import StepBuilder
from daemon.sequence import Sequence
from daemon.wire.columns import Bools, Int32, Slots, UInt8, int32

_LENGTH = np.uint8(FinishReason.LENGTH)
_NO_SLOTS = np.zeros(0, np.intp)
_NONE = int32()


@dataclass(slots=True, frozen=True)
class Limits:
    """What a step may be at most."""

    max_running: int
    max_batch_tokens: int
    prefill_chunk: int
    stages: int = 1  # of a pipeline


class Place(msgspec.Struct, frozen=True):
    """How a waiting sequence would be seated."""

    leader: int  # slot whose prompt it shares, or -1
    matched: list[int]  # blocks of its prefix found in the cache
    num_shared_tokens: int  # already computed, by the leader or in the cache
    num_blocks: int  # in all


class Scheduler:
    """One instance's queue, running slots and KV memory under one policy."""

    def __init__(self, instance: int, policy: Policy, limits: Limits, kv: KVCache) -> None:
        self.instance = instance
        self.policy = policy
        self.kv = kv
        self.slots = SlotTable(limits.max_running)
        self.waiting = WaitingQueue()
        self.in_flight = InFlight()
        self.started: list[tuple[Sequence, int]] = []  # (seated first time, cached tokens)
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.step = 0
        self._answered_step = 0
        self._limits = limits
        self._row_numbers = np.arange(limits.max_running, dtype=np.int32)
        self._row_numbers.flags.writeable = False  # answers show it, many at a time
        self.left: list[int] = []
        self._joined: list[int] = []

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return self.slots.num_running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that waits or was preempted."""
        sequence.instance = self.instance
        sequence.rank = self.policy.rank(sequence)
        self.waiting.push(sequence)

    def predict(self, sequence: Sequence, num_tokens: int) -> None:
        """Take a prediction of a sequence's output; it moves in the order if it waits."""
        if sequence.slot >= 0:
            sequence.predicted_tokens = num_tokens
            return
        self.waiting.remove(sequence)
        sequence.predicted_tokens = num_tokens
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence at whatever stage; its blocks come back when no step names them."""
        if sequence.state is State.RUNNING:
            self._vacate([sequence.slot])
        else:
            self.waiting.remove(sequence)
        sequence.move(State.FINISHED)

    def lose(self, kv: KVCache) -> None:
        """The worker died: all that ran waits again, for the empty memory `kv`."""
        for slot in self.slots.order().tolist():
            self._preempt(slot)
        self.kv = kv
        self.in_flight = InFlight()
        self.left.clear()
        self._joined.clear()

    def schedule(self, now: float) -> Batch | None:
        """The next step, or None when there is nothing that can run now."""
        step = StepBuilder(self._limits.max_batch_tokens, self.slots)
        decodes, prompts = self._runnable()
        if self.policy.prefill_alone:
            self._continue_prompts(step, prompts)
            self._admit(step)
            if step.empty:
                self._decode(step, decodes)
        else:
            self._decode(step, decodes)
            self._continue_prompts(step, prompts)
            self._admit(step)
        if step.empty:
            return None
        slots, counts = step.rows()
        if not slots.size:
            return None
        batch = self._emit(slots, counts, now)
        self._seal_prompts(step.prompts)
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
        return self._deliver(flown, reasons)

    # Filling a step

    def _runnable(self) -> tuple[Slots, Slots]:
        """Running slots with one token to compute, and those with more, in order."""
        table = self.slots
        order = table.order()
        pending = table.known[order] - table.computed[order]
        decoding = pending == 1
        if self._limits.stages > 1:
            return self._stage_share(order, decoding), order[pending > 1]
        if np.count_nonzero(decoding) == order.size:
            return order, _NO_SLOTS
        return order[decoding], order[pending > 1]

    def _stage_share(self, order: Slots, decoding: Bools) -> Slots:
        """A pipeline's stages work on distinct sequences: decodes whose last token is still on its
        way wait for it, and a step takes at most its stage's share of all that run.
        """
        ready = decoding & (self.slots.last_step[order] <= self._answered_step)
        return order[ready][: -(-order.size // self._limits.stages)]

    def _decode(self, step: StepBuilder, slots: Slots) -> None:
        """Every decode that the budget and the memory carry."""
        slots = slots[: step.budget]
        short = self.kv.short(slots, self.slots.computed[slots])
        if short.size <= self.kv.pool.num_available:
            if short.size:
                self.kv.grow_each(short)
            step.add_decodes(slots)
            return
        lacking = set(short.tolist())
        for slot in slots.tolist():
            if self.slots.members[slot] is None:
                continue
            if slot not in lacking or self._grow_by_force(slot):
                step.add_decodes(np.array([slot]))

    def _grow_by_force(self, slot: int) -> bool:
        """One block for a slot, preempting the last in order, itself if it is that.

        Fenced blocks are on their way: nobody is preempted to obtain what comes anyway.
        """
        while not self.kv.pool.num_available:
            if self.kv.pool.num_fenced:
                return False
            victim = int(self.slots.order()[-1])
            self._preempt(victim)
            if victim == slot:
                return False
        self.kv.grow_each(np.array([slot]))
        return True

    def _continue_prompts(self, step: StepBuilder, slots: Slots) -> None:
        """Further chunks of prompts that have started; their blocks are theirs already."""
        for slot in slots.tolist():
            if self.slots.members[slot] is not None:
                pending = int(self.slots.known[slot] - self.slots.computed[slot])
                count = self._chunk(step, pending)
                if count:
                    step.add_prompt(slot, count)

    def _chunk(self, step: StepBuilder, pending: int) -> int:
        """Tokens of a prompt with `pending` to go that this step takes; 0 for none."""
        if not self.policy.whole_prompts:
            return min(pending, self._limits.prefill_chunk, step.budget)
        if pending <= step.budget or not step.prompts:
            return min(pending, step.budget)
        return 0

    # Admission

    def _admit(self, step: StepBuilder) -> None:
        """Seat waiting sequences while budget, slots and memory last, in order."""
        if self.policy.gang and self.num_running:
            return
        while self.waiting and step.budget > 0:
            sequence = self.waiting.first
            if self.slots.full and not self._displaceable(sequence):
                return
            place = self._place(sequence)
            count = self._chunk(step, sequence.num_known_tokens - place.num_shared_tokens)
            if not count or not self._vacancy(sequence, place):
                return
            self.waiting.remove(sequence)
            step.add_prompt(self._seat(sequence, place), count)

    def _place(self, sequence: Sequence) -> Place:
        """Where its computed tokens would come from, and the blocks it would take."""
        reserve = sequence.limit if self.policy.reserve_limit else sequence.num_known_tokens
        num_blocks = self.kv.blocks_for(reserve)
        leader = self._leader_slot(sequence)
        if leader >= 0:
            return Place(leader, [], sequence.num_prompt_tokens - 1, num_blocks)
        matched = self.kv.match(sequence)
        return Place(-1, matched, len(matched) * self.kv.block_size, num_blocks)

    def _leader_slot(self, sequence: Sequence) -> int:
        """The slot of the running stream whose computed prompt this one can share, or -1."""
        leader = sequence.leader
        if leader is None or leader.slot < 0 or leader.instance != self.instance:
            return -1
        computed = self.slots.computed[leader.slot] >= sequence.num_prompt_tokens
        return leader.slot if computed and not sequence.num_output_tokens else -1

    def _vacancy(self, sequence: Sequence, place: Place) -> bool:
        """Whether a slot and the blocks are there, displacing others if the policy says so."""
        new_blocks = place.num_blocks - place.num_shared_tokens // self.kv.block_size
        while True:
            spare = max(1, self.kv.pool.num_blocks // 100) if self.num_running else 0
            if not self.slots.full and self.kv.fits(place.matched, new_blocks + spare):
                return True
            if self.kv.pool.num_fenced or not self.num_running:
                return False
            victim = self._displaceable(sequence)
            if victim is None:
                return False
            self._preempt(victim.slot)

    def _displaceable(self, sequence: Sequence) -> Sequence | None:
        """The running sequence whose place this one may take, if the policy says so."""
        last = self.slots.member(int(self.slots.order()[-1]))
        allowed = last is not sequence.leader and self.policy.displaces(sequence, last, self.step)
        return last if allowed else None

    def _seat(self, sequence: Sequence, place: Place) -> int:
        sequence.rank = self.policy.seated_rank(sequence, self.step)
        slot = self.slots.join(sequence, place.num_shared_tokens)
        if place.leader >= 0:
            self.kv.fork(place.leader, slot, place.num_shared_tokens, place.num_blocks)
            self.slots.last_step[place.leader] = self.step + 1
        else:
            self.kv.admit(slot, place.matched, place.num_blocks)
        sequence.move(State.RUNNING)
        sequence.num_sealed_blocks = place.num_shared_tokens // self.kv.block_size
        self._joined.append(slot)
        if not sequence.started:
            sequence.started = True
            self.started.append((sequence, place.num_shared_tokens))
        return slot

    # Leaving

    def _preempt(self, slot: int) -> None:
        """Give up a running sequence's place; what it computed is computed again later."""
        self.num_preemptions += 1
        num_computed = int(self.slots.computed[slot])
        self.num_recomputed_tokens += num_computed
        (sequence,) = self._vacate([slot])
        sequence.preemptions += 1
        sequence.recomputed_tokens += num_computed
        if sequence.num_output_tokens:
            sequence.preemptions_after_first += 1
        sequence.move(State.PREEMPTED)
        self.add(sequence)

    def _vacate(self, slots: list[int]) -> list[Sequence]:
        """Empty these slots, their blocks in one go; the sequences that had them."""
        table = self.slots
        last_step = 0
        for slot in slots:
            self.kv.seal(table.member(slot), int(table.computed[slot]))
            last_step = max(last_step, int(table.last_step[slot]))
        self.kv.release_each(slots, last_step)
        for slot in slots:
            if slot in self._joined:
                self._joined.remove(slot)
            else:
                self.left.append(slot)
        return [table.leave(slot) for slot in slots]

    # Sending and answering

    def _emit(self, slots: Slots, counts: Int32, now: float) -> Batch:
        """Turn rows into the plan, and count its tokens as computed."""
        self.step += 1
        table = self.slots
        starts = table.computed[slots]
        ends = starts + counts
        known = table.known[slots]
        samples = ends == known
        fed = starts < table.fed_until[slots]
        finals = ends == table.last_position[slots]
        table.computed[slots] = ends
        table.known[slots] = known + (samples ^ finals)
        table.last_step[slots] = self.step
        joined = np.array(self._joined, np.intp) if self._joined else _NO_SLOTS
        batch = Batch(
            self.instance,
            self.step,
            slots.astype(np.int32),
            starts,
            counts,
            samples.view(np.uint8),
            fed.view(np.uint8),
            *self.kv.table.take_changes(),
            *self.kv.take_copies(),
            int32(self.left) if self.left else _NONE,
            joined.astype(np.int32),
            table.sequence[joined],
        )
        self.left.clear()
        self._joined.clear()
        self._remember(batch, slots, samples, finals, now)
        return batch

    def _remember(
        self, batch: Batch, slots: Slots, samples: Bools, finals: Bools, now: float
    ) -> None:
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
                now,
            )
        )

    def _seal_prompts(self, slots: list[int]) -> None:
        """Offer blocks that prompt chunks of this step fill; later steps may share them."""
        for slot in slots:
            if (sequence := self.slots.members[slot]) is not None:
                self.kv.seal(sequence, int(self.slots.computed[slot]))

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
        first = [
            member
            for slot in flown.firsts.tolist()
            if (member := table.members[slot]) is not None
            and member.first_token_s < 0.0
            and table.delivered[slot] > member.num_prompt_tokens
        ]
        ended = self._vacate(slots[why != 0].tolist()) if np.count_nonzero(why) else []
        for sequence in ended:
            sequence.move(State.FINISHED)
        return Answer(rows, sequences, why, first, ended, flown.work, flown.planned_s)
