"""The iteration-level scheduler of one instance: add, remove, schedule, complete.

Each step takes decodes and prompt chunks under a token budget, in the policy's order; when blocks
run out the last in that order gives way. This file tells a step's story. Three rooms hold what it
decides on: `order.py` who goes first, `admission.py` who has a slot and blocks, `residency.py`
where each sequence's KV is.
"""

import numpy as np

from daemon.batch import Batch
from daemon.cost.step_time import StepTimeModel
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import PROACTIVE
from daemon.request import FinishReason, State
from daemon.scheduler.admission import Admission, PreemptionStats
from daemon.scheduler.in_flight import Answer, InFlight, InFlightStep
from daemon.scheduler.order import Order
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.repeat import Repeat, Repeats
from daemon.scheduler.residency import Residency, SwapStats
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import Limits, StepBuilder
from daemon.scheduler.suspects import Suspects
from daemon.sequence import Sequence
from daemon.story import What
from daemon.wire.columns import Bools, Int32, Slots, UInt8

_LENGTH, _ERROR = np.uint8(FinishReason.LENGTH), np.uint8(FinishReason.ERROR)
_NO_SLOTS = np.zeros(0, np.intp)


class Scheduler:
    """One instance's queue, running slots and KV memory under one policy."""

    def __init__(
        self, instance: int, policy: Policy, limits: Limits, kv: KVCache, swap: str
    ) -> None:
        self.instance = instance
        self.slots = SlotTable(limits.max_running)
        self.residency = Residency(swap)
        self.order = Order(instance, policy, self.slots)
        self.admission = Admission(self.order, kv, self.residency)
        self.waiting = self.order.waiting
        self.started = self.admission.started
        self.in_flight = InFlight()
        self.suspects = Suspects()
        self.limits = limits
        self._answered_step = 0
        self._repeats = Repeats(self.admission)
        self._row_numbers = np.arange(limits.max_running, dtype=np.int32)
        self._row_numbers.flags.writeable = False  # answers show it, many at a time

    @property
    def policy(self) -> Policy:
        """The policy that ranks its sequences."""
        return self.order.policy

    @property
    def kv(self) -> KVCache:
        """The device's KV memory."""
        return self.admission.kv

    @property
    def step(self) -> int:
        """The number of the newest plan."""
        return self.admission.step

    @property
    def step_time(self) -> StepTimeModel:
        """The model of its steps' times, as far as it has learned."""
        return self.order.step_time

    @property
    def stats(self) -> PreemptionStats:
        """The counts of preemptions since the last `take_stats`."""
        return self.admission.stats

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return self.slots.num_running

    @property
    def busy(self) -> bool:
        """Whether a step or a swap copy is in flight."""
        return bool(len(self.in_flight) or self.residency.space.num_flying)

    # What happens between steps

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence that is new here; it keeps the time since when it waited elsewhere."""
        since_s = sequence.waiting_since_s if sequence.instance >= 0 else now
        self.suspects.add(sequence)
        sequence.story.add(now, What.QUEUED, self.instance)
        self.residency.reserve.arrived(now, self.kv.blocks_for(sequence.num_prompt_tokens))
        self.order.enqueue(sequence, since_s)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence in any state; its blocks get free when no step in flight names them."""
        if sequence.state is State.RUNNING:
            self.admission.retire([sequence.slot])
        else:
            self.waiting.remove(sequence)
            self.residency.forget(sequence)
        self._end(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that goes to another instance."""
        self.waiting.remove(sequence)
        self.residency.forget(sequence)
        self.suspects.remove(sequence)

    def seal(self, sequence: Sequence) -> None:
        """Name a running sequence's full blocks for the prefix cache: their hashes are known."""
        self.admission.seal(sequence.slot)

    def on_prediction(self, sequence: Sequence, now: float) -> None:
        """Rank a sequence by its new prediction."""
        self.order.on_prediction(sequence, now)

    def on_ended(self, predicted_tokens: int, num_tokens: int) -> None:
        """Judge the predictor by an answer that ended."""
        self.order.trust.observe(predicted_tokens, num_tokens)

    def on_copied(
        self, step: int, now: float, num_out: int, out_s: float, num_in: int, in_s: float
    ) -> None:
        """Every swap copy of the plans up to `step` has ended; counts since the last call."""
        self.kv.pool.copies_done(step)
        self.residency.on_copied(step, now, num_out, out_s, num_in, in_s)

    def set_policy(self, policy: Policy, swap: str, now: float) -> None:
        """Change the policy and the swap mode; sequences keep their slots and their KV."""
        self.order.set_policy(policy, now)
        self.residency.mode = swap

    def set_starve_s(self, starve_s: float) -> None:
        """Change how long a sequence may wait before it is promoted."""
        self.order.set_starve_s(starve_s)

    def on_worker_ready(
        self, kv: KVCache, step_time: StepTimeModel, num_host: int, copy_block_s: float, now: float
    ) -> None:
        """A worker with empty memory, `num_host` blocks of it in the host, computes from now on."""
        self._reset(kv, now, num_host, copy_block_s)
        self.order.step_time = step_time

    def on_worker_lost(self, kv: KVCache, now: float, blamed: bool) -> list[Sequence]:
        """The worker died; `kv` is the empty memory that is left.

        Returns the sequences that killed it, if it is `blamed` on what it computed.
        """
        guilty = self.suspects.accuse(self.slots, self.in_flight) if blamed else []
        for slot in self.slots.order().tolist():
            self.slots.member(slot).story.add(now, What.WORKER_LOST)
        self._reset(kv, now)
        return guilty

    def _reset(self, kv: KVCache, now: float, num_host: int = 0, copy_block_s: float = 0.0) -> None:
        """Replace the memory by the empty `kv`; all that ran waits again."""
        self.admission.reset(kv, now, num_host, copy_block_s)
        self.in_flight = InFlight()

    def _end(self, sequence: Sequence) -> None:
        self.suspects.remove(sequence)
        sequence.move(State.FINISHED)

    # What the Core counts and shows

    def take_started(self) -> list[tuple[Sequence, int]]:
        """(sequence, cached tokens) of those that started since the last call."""
        taken = list(self.started)
        self.started.clear()
        return taken

    def take_stats(self) -> PreemptionStats:
        """The counts of preemptions since the last call."""
        taken, self.admission.stats = self.admission.stats, PreemptionStats()
        return taken

    def swap_stats(self) -> SwapStats:
        """The counts of the host pool and the swap link."""
        return self.residency.stats()

    # A step

    def schedule(self, now: float) -> Batch | None:
        """Plan the next step; None if nothing can run and no copy is ordered."""
        self.admission.num_promised = 0
        if self.order.policy.promotes:
            self.order.promote(self.kv, now)
        repeat = self._repeats.next(now) if not self.suspects else None
        if repeat is not None:
            self._copy_ahead(now)
            return self._emit_again(repeat)
        step = StepBuilder(self.limits, self.order.policy, self.slots)
        suspect = self.suspects.first
        if suspect is not None and self.in_flight:
            return None
        alone = self.admission.try_admit(suspect, now) if suspect is not None else -1
        self._fill(step, alone, now)
        if step.empty and alone >= 0:  # its KV is on its way, or it had to give way
            self._fill(step, -1, now)
        self._copy_ahead(now)
        slots, counts = step.rows()
        if not slots.size and not self.residency.space.has_orders:
            return None
        batch = self._emit(slots, counts)
        for slot, count in zip(step.prompts, step.chunks, strict=True):
            self.slots.member(slot).story.add(now, What.CHUNK, count)
            self.admission.seal(slot)  # later steps may share the blocks that it fills
        if self.limits.stages == 1:
            self._repeats.expect(batch, slots, bool(step.prompts))
        return batch

    def _copy_ahead(self, now: float) -> None:
        """Order copies of those that would leave first, where the swap mode makes them ahead."""
        if self.residency.mode == PROACTIVE:
            step_s = self.order.step_time.mean_s
            self.residency.copy_ahead(self.slots, self.kv, self.step + 1, step_s, now)

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

    def _fill(self, step: StepBuilder, alone: int, now: float) -> None:
        """Add rows in the policy's order; where `alone` is a slot, only that one."""
        decodes, prompts = self._runnable(alone, now)
        if self.order.policy.prefill_alone:
            self._continue_prompts(step, prompts)
            self._admit(step, now)
            if step.empty:
                self._decode(step, decodes, now)
        else:
            self._decode(step, decodes, now)
            prompts, behind = self._split(prompts, now)
            self._continue_prompts(step, prompts)
            epochs = self.slots.epoch[behind]
            self._admit(step, now)
            if behind.size:  # of these some may have given way, and others have their slots
                self._continue_prompts(step, behind[self.slots.epoch[behind] == epochs])

    def _runnable(self, alone: int, now: float) -> tuple[Slots, Slots]:
        """(slots with one token to compute, slots with more), both in order."""
        table = self.slots
        if self.order.policy.reviews:
            self.order.review(now)
        order = self.residency.on_device(table.order())
        if alone >= 0:
            order = order[order == alone]
        pending = table.known[order] - table.computed[order]
        decoding = pending == 1
        if self.limits.stages > 1:
            return self._stage_share(order, decoding), order[pending > 1]
        if np.count_nonzero(decoding) == order.size:
            return order, _NO_SLOTS
        return order[decoding], order[pending > 1]

    def _split(self, slots: Slots, now: float) -> tuple[Slots, Slots]:
        """(slots that rank before the first that waits, those behind it): a short prompt does not
        wait until a long one is computed.
        """
        if not (slots.size and self.order.policy.displaces and self.waiting):
            return slots, _NO_SLOTS
        slots = slots[self.slots.sequence[slots] >= 0]  # without those that gave way to a decode
        return self.order.split_at_first_waiting(slots, now)

    def _stage_share(self, order: Slots, decoding: Bools) -> Slots:
        """A pipeline's stages work on distinct sequences: decodes whose last token is still on its
        way wait for it, and a step takes at most its stage's share of all that run.
        """
        ready = decoding & (self.slots.last_step[order] <= self._answered_step)
        return order[ready][: -(-order.size // self.limits.stages)]

    def _decode(self, step: StepBuilder, slots: Slots, now: float) -> None:
        """Add every decode that the budget and the memory allow."""
        slots = slots[: step.budget]
        kv = self.kv
        short = kv.needing_block(slots, self.slots.computed[slots])
        if short.size <= kv.pool.num_available:
            if short.size:
                kv.append_each(short)
            step.add_decodes(slots)
            return
        waiting = self.admission.grow_or_preempt(short, now)
        stay = self.slots.sequence[slots] >= 0
        step.add_decodes(slots[stay & ~np.isin(slots, waiting)])

    def _continue_prompts(self, step: StepBuilder, slots: Slots) -> None:
        """Add further chunks of prompts that have started; they have their blocks already."""
        for slot in slots.tolist():
            if self.slots.members[slot] is not None:
                pending = int(self.slots.known[slot] - self.slots.computed[slot])
                if count := step.chunk(pending, self.slots.member(slot).prompt_cost):
                    step.add_prompt(slot, count)

    # Admission

    def _admit(self, step: StepBuilder, now: float) -> None:
        """Admit waiting sequences while budget, slots and memory last, in order."""
        admission = self.admission
        if self.suspects or (self.order.policy.gang and not admission.gang_open):
            return
        while self.waiting and step.budget > 0:
            sequence = self.waiting.first
            if self.slots.full and not admission.may_displace(sequence, now):
                return
            plan = admission.plan(sequence)
            pending = sequence.num_known_tokens - plan.num_shared_tokens
            count = step.chunk(pending, sequence.prompt_cost)
            if not count or not admission.make_room(sequence, plan, now):
                return
            slot = admission.admit(sequence, plan, now)
            if not self.residency.is_returning(sequence):
                step.add_prompt(slot, count)

    # Sending and answering

    def _emit(self, slots: Slots, counts: Int32) -> Batch:
        """Make the plan of these rows, and count its tokens as computed."""
        table = self.slots
        starts = table.computed[slots]
        ends = starts + counts
        known = table.known[slots]
        samples = ends == known
        fed = starts < table.fed_until[slots]
        finals = ends == table.last_position[slots]
        table.computed[slots] = ends
        table.known[slots] = known + (samples ^ finals)
        columns = slots.astype(np.int32), starts, counts, samples.view(np.uint8), fed.view(np.uint8)
        batch = self.admission.next_batch(*columns)
        table.last_step[slots] = batch.step
        self.in_flight.add(batch, slots, samples, finals, table)
        return batch

    def _emit_again(self, repeat: Repeat) -> Batch:
        """Make the plan of the step before once more, one token further."""
        columns = repeat.columns, repeat.starts, repeat.counts, repeat.samples, repeat.fed
        batch = self.admission.next_batch(*columns)
        self.in_flight.steps.append(repeat.count_on(self.slots, batch.step))
        return batch

    def _deliver(self, flown: InFlightStep, reasons: UInt8) -> Answer:
        """Count the tokens of rows whose sequences still have their slots; end those that end."""
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
        causes: list[int] = []
        if np.count_nonzero(why):
            (ending,) = (why != 0).nonzero()
            causes = why[ending].tolist()
            if FinishReason.ERROR in causes:
                self._fail(slots[why == _ERROR])
        first = [
            member
            for slot in flown.firsts.tolist()
            if (member := table.members[slot]) is not None
            and member.first_token_s < 0.0
            and table.delivered[slot] > member.num_prompt_tokens
        ]
        ended = self.admission.retire(slots[ending].tolist()) if causes else []
        for sequence in ended:
            self._end(sequence)
        return Answer(rows, sequences, why, first, ended, causes, flown.work)

    def _fail(self, slots: Slots) -> None:
        """Take back the tokens of rows that failed; what they computed is not cached."""
        self.slots.delivered[slots] -= 1
        for slot in slots.tolist():
            self.kv.forget(self.slots.member(slot))
