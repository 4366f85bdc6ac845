"""The iteration-level scheduler of one instance: add, remove, schedule, complete.

Each step takes decodes and prompt chunks under a token budget, as the policy's filler adds them
(`fillers/`); when blocks run out the last in the policy's order is preempted. This file tells a
step's story. Three rooms hold its state: `order.py` the order, `admission.py` slots and blocks,
`residency.py` the place of each sequence's KV.
"""

import msgspec
import numpy as np

from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import work_of_rows
from daemon.memory.kv_cache import KVCache
from daemon.memory.swap_space import DYNAMIC, PROACTIVE, SwapStats
from daemon.scheduler.admission import Admission
from daemon.scheduler.drafting import Drafting
from daemon.scheduler.dynamic_swap import job_limit
from daemon.scheduler.fillers import FILLERS
from daemon.scheduler.in_flight import (
    Answer,
    InFlight,
    InFlightStep,
    check_answer,
    count_one_each,
    count_tokens,
    take_back,
)
from daemon.scheduler.order import Order
from daemon.scheduler.policies.base import LIMIT, Policy
from daemon.scheduler.preemption_stats import PreemptionStats
from daemon.scheduler.prompt_room import even_room, prompt_room
from daemon.scheduler.residency import Residency
from daemon.scheduler.running import Running
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.steady_decode import SteadyDecode, SteadyDecodes
from daemon.scheduler.step import Limits, StepBuilder
from daemon.state.batch import Batch
from daemon.state.request import FinishReason, State
from daemon.state.sequence import Left, Sequence
from daemon.state.slo import Slo
from daemon.state.story import What
from daemon.wire.columns import ONE, Bools, Int32, Slots, UInt8, all_true, any_true, int32

# To look a member up in its enum takes as long as a call.
_ERROR, _FINISHED = FinishReason.ERROR, State.FINISHED
_NO_SLOTS = np.zeros(0, np.intp)
_NONE = int32()


class Scheduler:
    """One instance's queue, running slots and KV memory under one policy."""

    def __init__(
        self, instance: int, policy: Policy, limits: Limits, kv: KVCache, swap: str
    ) -> None:
        self.instance = instance
        self.slots = SlotTable(limits.max_running)
        self.running = Running(self.slots)
        self.residency = Residency(swap, instance)
        self.order = Order(instance, policy, self.slots)
        self.admission = Admission(self.order, kv, self.residency, limits.decode_admission)
        self.waiting = self.order.waiting
        self.started = self.admission.started
        self.in_flight = InFlight()
        self.suspects = self.admission.suspects
        self.pace = self.admission.pace
        self.drafting = Drafting(self.admission)
        self.filler = FILLERS[policy.filler](self.admission)
        self.limits = limits
        self._max_pause_s = 0.0
        self.steady_decodes = SteadyDecodes(self.admission, self.drafting, limits.max_batch_tokens)
        self._row_numbers = np.arange(limits.max_running, dtype=np.int32)
        self._row_numbers.flags.writeable = False  # many answers share it

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
        """The learned model of its step times."""
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

    @property
    def holds_back(self) -> bool:
        """Whether the next plan has to wait until all steps in flight have answered."""
        return bool(self.in_flight) and (self.drafting.wants or self.in_flight.drafts)

    @property
    def rests(self) -> bool:
        """Whether only an event, not time, can give it work, when it had nothing to plan."""
        timely = self.order.policy.promotes or self.order.policy.counts_down
        copies = self.residency.mode == PROACTIVE and self.num_running
        return not (self.waiting or timely or copies)

    # Between steps

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence that is new here; it keeps the time since which it waited elsewhere."""
        since_s = sequence.waiting_since_s if sequence.instance >= 0 else now
        self.residency.come_home(sequence)
        self.suspects.add(sequence)
        sequence.story.add(now, What.QUEUED, self.instance)
        self.residency.reserve.arrived(now, self.kv.blocks_for(sequence.num_prompt_tokens))
        if self.policy.paces:
            self.order.observe_backlog(self.kv)
        self.order.enqueue(sequence, since_s, now)
        self.admission.pace.pause(sequence)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence in any state; its blocks get free when no step in flight names them."""
        if sequence.state is State.RUNNING:
            self.admission.retire([sequence.slot])
        else:
            self.waiting.remove(sequence)
            self.residency.forget(sequence)
        self.admission.let_go(sequence)
        sequence.move(State.FINISHED)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that migrates; its KV stays as remote KV."""
        self.waiting.remove(sequence)
        self.residency.leave_waiting_remote_kv(sequence)
        self.admission.let_go(sequence)

    def seal(self, sequence: Sequence) -> None:
        """Name a running sequence's full blocks for the prefix cache: their hashes are known."""
        self.admission.seal(sequence.slot)

    def on_prediction(self, sequence: Sequence, now: float) -> None:
        """Rank a sequence by its new prediction."""
        self.order.on_prediction(sequence, now)

    def on_ended(self, sequence: Sequence, now: float) -> None:
        """Learn from an answer that ended."""
        self.order.on_ended(sequence, now)

    def on_copied(
        self, step: int, now: float, num_out: int, out_s: float, num_in: int, in_s: float
    ) -> None:
        """Note that every swap copy of the plans up to `step` has ended; counts since the last
        call.
        """
        self.residency.on_copied(self.kv, step, now, num_out, out_s, num_in, in_s)

    def set_policy(self, policy: Policy, swap: str, now: float) -> None:
        """Change the policy and the swap mode; sequences keep their slots and their KV."""
        if not self.policy.reserves == policy.reserves == LIMIT:
            self.kv.clear_reservations()
        self.order.set_policy(policy, now)
        self.filler = FILLERS[policy.filler](self.admission)
        self.residency.mode = swap
        self._set_pace()
        self.admission.reserve_running()

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of steps from the next plan on; the number of slots stays."""
        self.limits = limits
        self.steady_decodes.set_most_rows(limits.max_batch_tokens)

    def set_max_pause_s(self, max_pause_s: float) -> None:
        """Change the longest pause of streams that have begun, where the policy bounds it."""
        self._max_pause_s = max_pause_s
        self._set_pace()

    def _set_pace(self) -> None:
        self.pace.set_max_pause_s(self._max_pause_s if self.policy.paces else 0.0)

    def set_starve_s(self, starve_s: float) -> None:
        """Change the longest wait of a sequence before it is promoted."""
        self.order.set_starve_s(starve_s)

    def on_worker_ready(
        self,
        kv: KVCache,
        step_time: StepTimeModel,
        num_host: int,
        copy_block_s: float,
        now: float,
        *,
        same_until: tuple[int, ...],
        most_times: int,
    ) -> None:
        """Begin with a worker of empty memory, with `num_host` blocks in host memory; `same_until`
        and `most_times` as in `WorkerReady`.
        """
        self._reset(kv, now, num_host, copy_block_s)
        self.order.step_time = step_time
        self.drafting.same_until = same_until
        self.steady_decodes.most_times = most_times

    def on_worker_lost(self, kv: KVCache, now: float, blamed: bool) -> list[Sequence]:
        """Reset, as the worker died; `kv` is the empty memory left.

        Returns the sequences that killed it, if its work is `blamed`.
        """
        guilty = self.suspects.accuse(self.slots, self.in_flight) if blamed else []
        for slot in self.slots.order().tolist():
            self.slots.member(slot).story.add(now, What.WORKER_LOST)
        self._reset(kv, now)
        return guilty

    def _reset(self, kv: KVCache, now: float, num_host: int = 0, copy_block_s: float = 0.0) -> None:
        """Replace the memory by the empty `kv`; all running sequences wait again."""
        self.admission.reset(kv, now, num_host, copy_block_s)
        self.in_flight = InFlight()
        self.drafting.reset()

    def on_first_token(self, sequence: Sequence) -> None:
        """Note the time of a sequence's first token."""
        self.slots.note_first(sequence)

    def on_step_time(self, ratio: float, has_drafts: bool) -> None:
        """Learn what drafts cost from a decode step's time, as a share of the expected time."""
        self.drafting.record.timed(has_drafts, ratio)

    # For the Core's counts and views

    @property
    def decodes_steadily(self) -> bool:
        """Whether its newest plan was a steady decode."""
        return self.steady_decodes.newest is not None

    @property
    def looks_for_drafts(self) -> bool:
        """Whether some drafts would pay."""
        return self.drafting.looks

    def knows_length_of(self, sequence: Sequence) -> bool:
        """Whether enough answers like a sequence's ended here."""
        return self.order.lengths.knows(sequence)

    def left_of(self, sequence: Sequence) -> Left:
        """The expected rest of a sequence's answer, by answers that ended here."""
        return self.order.lengths.left(sequence)

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether a running sequence has its prompt's KV, and waits for its answer's room."""
        slot = sequence.slot
        computed = self.slots.computed[slot] >= self.slots.fed_until[slot]
        return bool(computed) and self.admission.predicted_room.waits(slot, self.kv)

    def take_started(self) -> list[tuple[Sequence, int]]:
        """(sequence, cached tokens) of sequences started since the last call."""
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

    def schedule(self, now: float, slo: Slo | None = None) -> Batch | None:
        """Plan the next step; None if nothing can run and no copy is ordered. `slo`: prompts
        have the room that it leaves beside decodes, else the whole budget.
        """
        admission, waiting, suspects = self.admission, self.waiting, self.suspects.members
        admission.num_promised = 0
        if self.in_flight.drafts:  # the positions of its rows are unknown
            return None
        if self.slots.giving_way:
            admission.preempt_answered(now)
        if not (waiting.num or self.slots.num_running or self.residency.space.has_orders):
            self.steady_decodes.forget()
            self._copy_ahead(now)
            if not self._has_copies:
                return None
        if waiting.unranked:
            self.order.rank_some(now)
        policy = self.order.policy
        if policy.promotes:
            self.order.promote(self.kv, now)
        if policy.nears:
            self.order.near(now)
        drafts = self.drafting.wants and not self.in_flight
        plain = self.limits.stages == 1 and not (suspects or drafts)
        plain = plain and (not waiting.num or self.filler.is_settled())
        if plain and (steady := self.steady_decodes.next(now)) is not None:
            self._copy_ahead(now)
            return self._emit_steady(steady)
        step = StepBuilder(self.limits, policy, self.slots)
        if suspects and self.in_flight:
            return None
        suspect = self.suspects.first if suspects else None
        alone = admission.try_admit(suspect, now) if suspect is not None else -1
        decodes, prompts = self._runnable(alone, now)
        if slo is not None and decodes.size and (prompts.size or waiting.num):
            most = step.budget - decodes.size
            room = prompt_room(self.order, most, decodes, prompts, slo, now)
            step.cap(decodes.size + room)
        if self.limits.stages > 1 and (prompts.size or waiting.num):
            most = step.budget - decodes.size
            room = even_room(
                self.order, most, decodes, prompts, self._prompt_tokens_before, self.limits.stages
            )
            step.cap(decodes.size + room)
        self.filler.fill(step, decodes, prompts, now)
        if alone >= 0 and step.empty:  # its KV is on its way, or it was preempted
            self.filler.fill(step, *self._runnable(-1, now), now)
        self._copy_ahead(now)
        slots, counts = step.rows()
        if not (slots.size or self.residency.space.has_orders or self._has_copies):
            return None
        if admission.kv.has_windows and step.prompts:
            self._reach(step)
        batch = self._emit(step, slots, counts, step.budget if drafts else 0)
        for slot, count in zip(step.prompts, step.chunks, strict=True):
            sequence = admission.seal(slot)  # later steps may share these blocks
            sequence.story.add(now, What.CHUNK, count)
            if admission.kv.has_states:
                admission.kv.keep_states(slot, self.slots.computed.item(slot))
        return batch

    @property
    def _prompt_tokens_before(self) -> int:
        """Prompt tokens of the step planned last, while it is in flight."""
        if not self.in_flight:
            return 0
        return sum(count for count, _ in self.in_flight.newest.work.chunks)

    @property
    def _has_copies(self) -> bool:
        """Whether snapshots of states are to be copied, whose sequences may be gone."""
        kv = self.admission.kv
        return kv.has_states and kv.has_copies

    def _reach(self, step: StepBuilder) -> None:
        """Have prompts hold what their chunks read and write of layers with windows."""
        for slot, count in zip(step.prompts, step.chunks, strict=True):
            start, known = self.slots.computed.item(slot), self.slots.known.item(slot)
            self.kv.compute(slot, start, start + count == known, self.step + 1)

    def _runnable(self, alone: int, now: float) -> tuple[Slots, Slots]:
        """(slots with one token to compute, slots with more), both in order; where `alone` is a
        slot, only that one.
        """
        table = self.slots
        if self.order.policy.reviews:
            self.order.review(now)
        order = self.residency.on_device(table.order())
        if table.giving_way:
            order = order[~table.gives_way(order)]
        if alone >= 0:
            order = order[order == alone]
        pending = table.known - table.computed  # whole columns are quicker than gathered ones
        decoding = (pending == ONE)[order]
        if self.limits.stages > 1:
            return self._stage_share(order, decoding), order[pending[order] > ONE]
        if all_true(decoding):
            return order, _NO_SLOTS
        return order[decoding], order[pending[order] > ONE]

    def _stage_share(self, order: Slots, decoding: Bools) -> Slots:
        """The decodes of a pipeline's next step: stages work on distinct sequences, so decodes
        whose last token is still in flight wait, and a step takes at most its stage's share.
        """
        ready = decoding & (self.slots.last_step[order] <= self.admission.answered_step)
        return order[ready][: -(-order.size // self.limits.stages)]

    def _copy_ahead(self, now: float) -> None:
        """Order copies of sequences that would leave first, and of those that come back next, where
        the swap mode copies ahead.
        """
        residency = self.residency
        if not residency.copies_ahead:
            return
        step, step_time, num_running = self.step + 1, self.order.step_time, self.slots.num_running
        limit = None
        if residency.mode == DYNAMIC:
            if residency.space.has_orders or residency.space.num_flying:
                return
            limit = job_limit(self.slots, self.waiting, self.kv)
        residency.copy_ahead(self.slots, self.kv, step, step_time, now, limit)
        if residency.num_parked_blocks and limit is None:
            coming = self.admission.next_to_return()
            residency.upload_ahead(coming, num_running, self.kv, step, step_time)
        elif residency.num_parked_blocks and limit is not None:
            residency.upload_ahead(limit.uploads, num_running, self.kv, step, step_time, share=1.0)

    # Sending and answering

    def _emit(self, step: StepBuilder, slots: Slots, counts: Int32, most_drafts: int) -> Batch:
        """Make the plan of a step's rows, and count its tokens, except drafts, as computed."""
        self.steady_decodes.forget()
        table, num_rows, num_prompts = self.slots, slots.size, len(step.prompts)
        num_tokens = num_rows - num_prompts + sum(step.chunks)
        starts = table.computed[slots]
        ends = starts + counts
        samples = ends == table.known[slots] if step.any_partial else None  # None: all
        drafts = _NONE
        if most_drafts > 0:
            num_samples = num_rows if samples is None else int(np.count_nonzero(samples))
            drafts = self.drafting.take(slots, (num_tokens, num_samples), most_drafts)
        fed = starts < table.fed_until[slots]
        batch = self.admission.next_batch(
            slots.astype(np.int32),
            starts,
            counts,
            table.of_decodes.samples[:num_rows] if samples is None else samples.view(np.uint8),
            fed.view(np.uint8),
        )
        if drafts.size:
            batch = msgspec.structs.replace(batch, drafts=drafts)
        attended = table.num_computed_tokens
        if num_rows < table.num_running:
            attended = int(np.add.reduce(starts))
        table.computed[slots] = ends
        table.num_computed_tokens += num_tokens
        table.note_step(slots, batch.step)
        rows = slots
        if samples is not None:
            rows, ends, fed = slots[samples], ends[samples], fed[samples]
            drafts = drafts[samples] if drafts.size else drafts
        table.known[rows] = delivered = ends + ONE
        (finals,) = (ends == table.last_position[rows]).nonzero()
        if finals.size:  # their tokens are never computed
            table.known[rows[finals]] = ends[finals]
        self.in_flight.add(
            InFlightStep(
                step=batch.step,
                slots=rows,
                sequences=table.sequence[rows],
                firsts=rows[fed] if any_true(fed) else _NO_SLOTS,
                finals=finals,
                delivered=delivered,
                departures=table.departures,
                work=work_of_rows(batch, num_prompts, rows.size, attended),
                drafts=drafts,
            )
        )
        return batch

    def _emit_steady(self, steady: SteadyDecode) -> Batch:
        """Make the plan of a steady decode."""
        columns = steady.columns, steady.starts, steady.counts, steady.samples, steady.fed
        batch = steady.of_times(self.admission.next_batch(*columns))
        self.in_flight.steps.append(steady.count_on(self.slots, batch.step))
        return batch

    def complete(
        self, step: int, reasons: UInt8, counts: Int32 = _NONE, offers: Int32 = _NONE
    ) -> Answer | None:
        """Take a step's answer; None if it is not the awaited one. `counts` and `offers` as in
        `StepDone`. Raises ValueError for columns that no worker may answer.
        """
        flown = self.in_flight.answer(step)
        if flown is None:
            return None
        if counts.size or offers.size or reasons.size != flown.slots.size or flown.work.times > 1:
            check_answer(flown, reasons, counts, offers, self.in_flight.steps, self.slots)
            if counts.size and flown.work.times == 1:
                self.steady_decodes.forget()
        self.admission.answered_step = step
        self.admission.kv.pool.step_done(step)
        answer = self._deliver(flown, reasons, counts, offers)
        if self.suspects.members:
            self.suspects.acquit(answer.sequences.tolist())
        return answer

    def _deliver(self, flown: InFlightStep, reasons: UInt8, counts: Int32, offers: Int32) -> Answer:
        """Count the tokens of rows whose sequences still have their slots; end those that end."""
        table = self.slots
        if counts.size:
            rows, slots, why = count_tokens(flown, reasons, counts, table, self.kv)
            sequences = table.sequence[slots]
        else:
            rows, slots, sequences, why = count_one_each(
                flown, reasons, table, self._row_numbers[: flown.slots.size]
            )
        causes: list[int] = []
        (ending,) = why.nonzero()
        if ending.size:
            causes = why[ending].tolist()
            if _ERROR in causes:
                take_back(slots[why == np.uint8(_ERROR)], table, self.kv)
        joined = self._joined(flown) if flown.firsts.size else []
        ended = self.admission.retire(slots[ending].tolist()) if causes else []
        for sequence in ended:
            self.admission.let_go(sequence)
            sequence.move(_FINISHED)
        drafts = self.drafting.answered(flown, counts, offers, self.in_flight)
        return Answer(
            rows=rows,
            sequences=sequences,
            reasons=why,
            joined=joined,
            ended=ended,
            causes=causes,
            work=flown.work,
            drafts=drafts,
        )

    def _joined(self, flown: InFlightStep) -> list[Sequence]:
        """The sequences whose first token since they got their slots this step delivered."""
        table = self.slots
        return [
            member
            for slot in flown.firsts.tolist()
            if (member := table.members[slot]) is not None
            and table.delivered.item(slot) > table.fed_until.item(slot)
        ]
