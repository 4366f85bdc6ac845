"""Steady decode: a step that decodes all running sequences, repeated one token further.

Most steps are such. It needs no decision while all running sequences decode and fit the budget,
none ends by its limit, blocks are available to grow into, and none joins. So its columns are
advanced, not gathered anew. Where such steps are short and none waits, one plan has several.
"""

import msgspec
import numpy as np

from daemon.cost.step_time import StepTimeModel
from daemon.cost.work import StepWork
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.admission import Admission
from daemon.scheduler.drafting import Drafting
from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.slots import SlotTable
from daemon.state.batch import Batch
from daemon.wire.columns import ONE, ZERO, Int32, Slots, all_true, any_true

AT_ONCE_S = 0.020
"""The longest time of several steps in one plan: a reader sees their tokens at once, and an arrival
waits no longer than for a common step."""

FRAME_S = 1 / 60
"""The time between two frames of a screen: steps up to this length are planned by twos."""

_NO_SLOTS = np.zeros(0, np.intp)


class SteadyDecode:
    """The common columns of steps of the same decodes, and the position of each row."""

    def __init__(self, slots: Slots, starts: Int32, table: SlotTable, kv: KVCache) -> None:
        """One token for each running sequence, in these slots, at positions `starts`."""
        self.slots = slots  # [B]; all running, in order
        self.columns = slots.astype(np.int32)  # the same, as a worker reads them
        self.columns.flags.writeable = False  # many steps share it
        counts, samples, fed = table.of_decodes
        self.counts, self.samples = counts[: slots.size], samples[: slots.size]
        self.fed = fed[: slots.size]
        self.starts = starts  # of the next step
        self.sequences = table.sequence[slots]  # [B]
        self._room = kv.table.held[slots] * kv.block_size - starts
        self._attended = table.num_computed_tokens + slots.size
        left = table.last_position[slots] - starts
        self._left = int(left[left.argmin()])
        self.times = 1  # that the next plan computes the step

    def grow(self, kv: KVCache) -> bool:
        """Find blocks for a further token each; False, with nothing changed, if a sequence ends
        with it, or blocks are lacking.
        """
        if self._left <= 1:
            return False
        (dry,) = (self._room == ZERO).nonzero()
        if dry.size:
            if not kv.can_append(self.slots[dry]):
                return False
            kv.append_each(self.slots[dry])
            self._room[dry] = kv.block_size
        return True

    def extend(self, most_times: int, step_time: StepTimeModel, drafting: Drafting) -> None:
        """Compute the step several times, after `grow`, as far as there are blocks and no sequence
        ends before the last time.
        """
        step_s = step_time.decode_s(self.slots.size, self._attended)
        if 0.0 < step_s <= FRAME_S:
            times = int(AT_ONCE_S / step_s)
            # A draft of a longer step saves more than a pair does, and is surer the fewer tokens
            # are sampled ahead of it.
            if times == 1 and not drafting.offered:
                times = 2
            self.times = min(times, most_times, self._left - 1, int(self._room.min()))

    def of_times(self, batch: Batch) -> Batch:
        """The plan of the step with its number of times."""
        return batch if self.times == 1 else msgspec.structs.replace(batch, times=self.times)

    def count_on(self, table: SlotTable, step: int) -> InFlightStep:
        """Count the tokens of the step as computed, after `grow`; the next one follows on them."""
        slots, times, num_rows = self.slots, self.times, self.slots.size
        work = StepWork(num_rows, self._attended, (), num_rows, times)
        self.starts = ends = self.starts + np.int32(times)
        self._room -= np.int32(times)
        self._left -= times
        self._attended += num_rows * times
        self.times = 1
        table.computed[slots] = ends
        table.num_computed_tokens += num_rows * times
        table.known[slots] = delivered = ends + ONE
        table.note_step(slots, step)
        return self.flown(step, delivered, work, table.departures)

    def flown(self, step: int, delivered: Int32, work: StepWork, departures: int) -> InFlightStep:
        """The record of the step with this number, until it answers."""
        return InFlightStep(
            step=step,
            slots=self.slots,
            sequences=self.sequences,
            firsts=_NO_SLOTS,
            finals=_NO_SLOTS,
            delivered=delivered,
            departures=departures,
            work=work,
        )

    # Many steps at once

    @property
    def attended(self) -> int:
        """Tokens that all rows of the next step attend to, their own included."""
        return self._attended

    @property
    def num_left(self) -> int:
        """Tokens until the first sequence ends by its limit."""
        return self._left

    @property
    def num_unwritten(self) -> int:
        """Places for further tokens in the blocks of the rows."""
        return int(np.add.reduce(self._room))

    def is_of(self, flown: InFlightStep, table: SlotTable) -> bool:
        """Whether a step in flight decodes the same rows, in whatever order, and all go on; rows of
        sequences that have left since do not count.
        """
        if flown.work.times > 1 or flown.work.chunks:
            return False
        if flown.firsts.size or flown.finals.size or flown.drafts.size:
            return False
        num_rows = flown.slots.size
        if flown.departures != table.departures:
            num_rows = int(np.count_nonzero(flown.alive(table)))
        return num_rows == self.slots.size

    def fits(self, kv: KVCache) -> bool:
        """Whether each row has less than a block of room: it lacks one once in each block."""
        return int(self._room[self._room.argmax()]) < kv.block_size

    def lacking_after(self, num_steps: int) -> Slots:
        """The slots whose blocks are full after so many further steps, less than a block's."""
        lacking: Slots = self.slots[self._room == np.int32(num_steps)]
        return lacking

    def count_more(self, num_steps: int, table: SlotTable, kv: KVCache, step: int) -> None:
        """Count the tokens of further steps as computed, the newest with this number; their blocks
        are there.
        """
        slots, num_tokens = self.slots, self.slots.size * num_steps
        self.starts = ends = self.starts + np.int32(num_steps)
        self._room = kv.table.held[slots] * kv.block_size - ends
        self._left -= num_steps
        self._attended += num_tokens
        table.computed[slots] = ends
        table.num_computed_tokens += num_tokens
        table.known[slots] = ends + ONE
        table.note_step(slots, step)


class SteadyDecodes:
    """Decides whether an instance's next plan is a steady decode."""

    def __init__(self, admission: Admission, drafting: Drafting, most_rows: int) -> None:
        """`most_rows`: the token budget of a step, of which each row takes one."""
        self._admission = admission
        self._drafting = drafting
        self._most_rows = most_rows
        self._newest: SteadyDecode | None = None  # None: the newest plan was another
        self.most_times = 1  # times that the worker can compute a step

    @property
    def newest(self) -> SteadyDecode | None:
        """The newest plan, if it was a steady decode and the next one may go on from it."""
        return self._newest

    def renew(self) -> SteadyDecode | None:
        """The next plan in the present order of those that run, as the newest one; None: not all
        decode.
        """
        self._newest = self._first()
        return self._newest

    def set_most_rows(self, most_rows: int) -> None:
        """Change the token budget; a steady decode that it does not allow any more ends."""
        if most_rows < self._most_rows:
            self.forget()
        self._most_rows = most_rows

    def forget(self) -> None:
        """Do not go on from the newest step: sequences are no longer where it expects them."""
        self._newest = None

    def next(self, now: float) -> SteadyDecode | None:
        """The next plan if it is a steady decode, with its blocks; None: all is to be decided."""
        steady, self._newest = self._newest, None
        admission, table = self._admission, self._admission.slots
        if admission.predicted_room.is_open(admission.kv):
            return None
        waits = bool(admission.waiting)
        if waits and not (table.full or admission.is_stuck(admission.waiting.first)):
            return None
        if admission.order.policy.reviews:
            admission.order.review(now)
        if steady is None or steady.slots is not table.order() or table.giving_way:
            steady = self._first()
        if steady is None or not steady.grow(admission.kv):
            return None
        # Running sequences grow before any joins, so their blocks were found first.
        if waits and table.full:
            sequence = admission.next_waiting(now)
            if sequence is not None and admission.may_displace(sequence, now):
                return None
        if self.most_times > 1 and not waits:
            steady.extend(self.most_times, admission.order.step_time, self._drafting)
        self._newest = steady
        return steady

    def _first(self) -> SteadyDecode | None:
        """The step of all running sequences, if each has one token to compute, its newest, and the
        budget allows all.
        """
        table = self._admission.slots
        order = table.order()
        starts = table.computed[order]
        if not 0 < order.size <= self._most_rows:
            return None
        if self._admission.residency.any_still or table.giving_way:
            return None
        if not all_true(table.known[order] - starts == ONE):
            return None
        if any_true(starts < table.fed_until[order]):
            return None
        return SteadyDecode(order, starts, table, self._admission.kv)
