"""Steps in flight: what is kept of each until its worker answers, and the answer."""

from collections import deque

import msgspec
import numpy as np

from daemon.cost.work import StepWork, work_of
from daemon.scheduler.slots import SlotTable
from daemon.state.batch import Batch
from daemon.state.request import FinishReason
from daemon.state.sequence import Sequence
from daemon.wire.columns import Bools, Int32, Int64, Slots, UInt8, all_true, any_true, int32

_ERROR = FinishReason.ERROR
_NO_SLOTS = np.zeros(0, np.intp)
_NO_DRAFTS = int32()


class InFlightStep(msgspec.Struct, frozen=True, gc=False):
    """A step that has not answered: its R sampled rows, in order."""

    step: int
    slots: Slots  # [R]
    sequences: Int64  # [R]
    epochs: Int64  # [R]
    firsts: Slots  # slots whose first token since they joined this is; R or fewer
    finals: Bools  # [R]: the token is the sequence's last by max_tokens
    departures: int  # of all slots, when the step was planned
    work: StepWork
    drafts: Int32 = _NO_DRAFTS  # [R] verified beside the rows' own tokens; empty: none


class Answer(msgspec.Struct, frozen=True):
    """The outcome of an answered step: the T tokens that count."""

    rows: Int32  # [T] among the tokens that were drawn: one of each row, or as it counted them
    sequences: Int64  # [T]; those of one sequence follow each other
    reasons: UInt8  # [T] FinishReason; ERROR: the row failed, and this is no token
    joined: list[Sequence]  # those whose first token this was, of all or after they had given way
    ended: list[Sequence]
    causes: list[int]  # FinishReason of each that ended
    work: StepWork
    drafts: tuple[int, int, int] = (0, 0, 0)  # rows that drafted, their drafts, accepted ones

    @property
    def num_failed(self) -> int:
        """Rows that failed."""
        return self.causes.count(_ERROR)


class InFlight:
    """The queue of steps in flight; answers come in the order of the plans."""

    def __init__(self) -> None:
        self.steps: deque[InFlightStep] = deque()
        self._num_drafting = 0  # of them

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def drafts(self) -> bool:
        """Whether rows that are in flight may draw more than a token each."""
        return self._num_drafting > 0

    @property
    def times(self) -> int:
        """How many tokens they draw of a row that all of them decode; of others fewer."""
        return sum(step.work.times for step in self.steps)

    @property
    def newest(self) -> InFlightStep:
        """The step planned last. Raises IndexError if none is in flight."""
        return self.steps[-1]

    def add(
        self, batch: Batch, slots: Slots, samples: Bools, finals: Bools, table: SlotTable
    ) -> None:
        """Add a step that was just planned: the slots of its B rows, which of them are sampled, and
        which end their sequence by max_tokens.
        """
        fed = batch.fed.view(bool)
        firsts = slots[samples & fed] if any_true(fed) else _NO_SLOTS
        rows, drafts = slots, batch.drafts
        if not all_true(samples):
            rows, finals = slots[samples], finals[samples]
            drafts = drafts[samples] if drafts.size else drafts
        named = rows, table.sequence[rows], table.epoch[rows]
        departures, work = table.departures, work_of(batch)
        self._num_drafting += drafts.size > 0
        self.steps.append(
            InFlightStep(batch.step, *named, firsts, finals, departures, work, drafts)
        )

    def answer(self, step: int) -> InFlightStep | None:
        """The oldest step if it is the one that answered; None for an answer nobody awaits."""
        if self.steps and self.steps[0].step == step:
            flown = self.steps.popleft()
            self._num_drafting -= flown.drafts.size > 0
            return flown
        return None
