"""A step of decodes that comes again, one token further: most steps are no more than that.

Such a step needs no decision while the same sequences run in the same order, none of them ends by
its limit, and blocks are there to grow into. So its columns are counted on, not gathered anew.
"""

import numpy as np

from daemon.batch import Batch
from daemon.cost.work import StepWork
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.admission import Admission
from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.slots import SlotTable
from daemon.wire.columns import Int32, Slots

_NO_SLOTS = np.zeros(0, np.intp)


class Repeat:
    """The columns that steps of the same decodes have in common, and where each of them stands."""

    def __init__(self, batch: Batch, slots: Slots, table: SlotTable, kv: KVCache) -> None:
        """`batch` was just planned: one token for each sequence that runs, in these slots."""
        self.slots = slots  # [B]
        self.columns = batch.slots  # likewise, as a worker reads them
        self.counts = batch.counts
        self.samples = batch.samples
        self.fed = np.zeros_like(batch.fed)  # workers have the tokens that come
        self.starts: Int32 = batch.starts + 1  # of the next step
        self._finals = np.zeros(slots.size, np.bool_)
        self._epochs = table.epoch[slots]
        self._order = table.order()
        self._room = kv.table.held[slots] * kv.block_size - self.starts
        self._attended = int(np.add.reduce(self.starts)) + slots.size
        self._left = int((table.last_position[slots] - self.starts).min())
        for column in (self.columns, self.counts, self.samples, self.fed, self._finals):
            column.flags.writeable = False  # many steps show it

    def grow(self, table: SlotTable, kv: KVCache) -> bool:
        """Find blocks for one token more each; False, and nothing has changed, if this step is no
        repetition: sequences joined, left or were ranked anew, or end with it, or need blocks that
        are not there.
        """
        if table.order() is not self._order or self._left <= 1:
            return False
        (dry,) = (self._room == 0).nonzero()
        if dry.size > kv.pool.num_available:
            return False
        if dry.size:
            kv.append_each(self.slots[dry])
            self._room[dry] = kv.block_size
        return True

    def count_on(self, table: SlotTable, step: int) -> InFlightStep:
        """Count the tokens of the step as computed, after `grow`; the next one follows on them."""
        slots, work = self.slots, StepWork(self.slots.size, self._attended, (), self.slots.size)
        self.starts = ends = self.starts + 1
        self._room -= 1
        self._left -= 1
        self._attended += slots.size
        table.computed[slots] = ends
        table.known[slots] = ends + 1
        table.last_step[slots] = step
        return InFlightStep(
            step, slots, self._epochs, _NO_SLOTS, self._finals, table.departures, work
        )


class Repeats:
    """Whether the next plan of an instance is its newest one again."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._newest: Repeat | None = None  # the newest plan, if it may come again
        self._last_order = _NO_SLOTS  # of slots, when it was made

    def expect(self, batch: Batch, slots: Slots, prompts: bool) -> None:
        """Be ready to repeat a plan of decodes of all that run, once their order has come twice."""
        admission, self._newest = self._admission, None
        order = admission.slots.order()
        if order is self._last_order and 0 < slots.size == order.size and not prompts:
            self._newest = Repeat(batch, slots, admission.slots, admission.kv)
        self._last_order = order

    def next(self, now: float) -> Repeat | None:
        """The newest plan if it comes again, with its blocks; else all is still to be decided.

        Those that run grow before anybody joins, so their blocks are found before one that waits
        is asked whether it displaces another.
        """
        admission, repeat = self._admission, self._newest
        waits, full = bool(admission.waiting), admission.slots.full
        if repeat is None or (waits and not full):
            return None
        if admission.order.policy.reviews:
            admission.order.review(now)
        if not repeat.grow(admission.slots, admission.kv):
            return None
        if waits and admission.may_displace(admission.waiting.first, now):
            return None
        return repeat
