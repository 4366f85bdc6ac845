"""Steps in flight: what is kept of each until its worker answers, and the answer.

A plan reckons with one token of each row that it samples, or with as many as it has times. Where a
row drew k more, the worker has written the KV of all but the last behind what was planned, into
blocks that the sequence has, and the sequence is k tokens further than was reckoned. Where it drew
none, the last token of the row is computed again.
"""

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from daemon.cost.work import StepWork, work_of
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.slots import SlotTable
from daemon.state.batch import Batch
from daemon.state.request import FinishReason
from daemon.state.sequence import Sequence
from daemon.wire.columns import ONE, Bools, Int32, Int64, Slots, UInt8, all_true, any_true, int32

_ERROR = FinishReason.ERROR
_LENGTH, _FAILED = np.uint8(FinishReason.LENGTH), np.uint8(FinishReason.ERROR)
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
        self._num_drafting += drafts.size > 0
        self.steps.append(
            InFlightStep(
                step=batch.step,
                slots=rows,
                sequences=table.sequence[rows],
                epochs=table.epoch[rows],
                firsts=firsts,
                finals=finals,
                departures=table.departures,
                work=work_of(batch),
                drafts=drafts,
            )
        )

    def answer(self, step: int) -> InFlightStep | None:
        """The oldest step if it is the one that answered; None for an answer nobody awaits."""
        if self.steps and self.steps[0].step == step:
            flown = self.steps.popleft()
            self._num_drafting -= flown.drafts.size > 0
            return flown
        return None


# What rows drew


def count_one_each(
    flown: InFlightStep, reasons: UInt8, table: SlotTable, numbers: Int32
) -> tuple[Int32, Slots, Int64, UInt8]:
    """Count a token of each row that is not void; its (index, slot, sequence, reason). `numbers`:
    0, 1, ... [R].
    """
    slots, sequences, why, rows = flown.slots, flown.sequences, reasons, numbers
    if any_true(flown.finals):
        why = reasons.copy()
        why[flown.finals & ~reasons.astype(np.bool_)] = _LENGTH
    if table.departures != flown.departures:
        rows = rows[table.epoch[slots] == flown.epochs]
        slots, sequences, why = slots[rows], sequences[rows], why[rows]
    table.delivered[slots] += ONE
    return rows, slots, sequences, why


def check_answer(
    flown: InFlightStep,
    reasons: UInt8,
    counts: Int32,
    offers: Int32,
    later: Iterable[InFlightStep],
) -> None:
    """Raises ValueError for columns of another length than the rows, and for counts that a worker
    may not answer: of a row that ends without a token, other than one of a row from which a `later`
    step goes on, or other than its times of one that goes on.
    """
    times, num_rows = flown.work.times, flown.slots.size
    if reasons.size == num_rows and times == 1 and not (counts.size or offers.size):
        return  # as most are
    for column, name in ((reasons, "answers"), (offers, "offers")):
        if column.size != num_rows and (column.size or column is reasons):
            raise ValueError(f"step {flown.step}: {column.size} {name} for {num_rows} rows")
    if not counts.size and times == 1:
        return
    if counts.size != num_rows:
        raise ValueError(f"step {flown.step}: {counts.size} counts for {num_rows} rows")
    if (counts < (reasons != 0)).any():
        raise ValueError(f"step {flown.step}: a row ends without a token")
    if times > 1:
        if (counts > times).any() or (counts[reasons == 0] != times).any():
            raise ValueError(f"step {flown.step}: a row goes on with other than {times} tokens")
        return
    odd = counts != 1
    slots, epochs = flown.slots[odd], flown.epochs[odd]
    for step in later:
        _, mine, its = np.intersect1d(slots, step.slots, return_indices=True)
        if (epochs[mine] == step.epochs[its]).any():
            raise ValueError(f"step {flown.step}: step {step.step} expects one token of each row")


def count_tokens(
    flown: InFlightStep, reasons: UInt8, counts: Int32, table: SlotTable, kv: KVCache
) -> tuple[Int32, Slots, UInt8]:
    """Count what the rows drew, as far as their sequences still run and may have it.

    Returns the T tokens that count: index among all that were drawn, slot, and reason; the last
    one of a sequence alone has a reason. Raises ValueError where KV is beyond a sequence's blocks.
    """
    (live,) = (table.epoch[flown.slots] == flown.epochs).nonzero()
    slots, why, drawn = flown.slots[live], reasons[live].copy(), counts[live]
    failed = why == _FAILED
    left = table.last_position[slots] + 1 - table.delivered[slots]
    taken = np.minimum(np.where(failed, 1, drawn), left)
    why[(taken == left) & ((why == 0) | (taken < drawn)) & ~failed] = _LENGTH
    table.delivered[slots] += taken
    more = taken - flown.work.times
    table.computed[slots] += more
    table.known[slots] += np.where(flown.finals[live], 0, more)
    if (table.computed[slots] > kv.table.held[slots] * kv.block_size).any():
        raise ValueError(f"step {flown.step}: a row drew more tokens than its blocks hold")
    ends = np.cumsum(taken)
    begins = (np.cumsum(counts) - counts)[live]
    tokens = np.repeat(begins - (ends - taken), taken) + np.arange(int(taken.sum()))
    reasons_of_tokens = np.zeros(tokens.size, np.uint8)
    reasons_of_tokens[ends[taken > 0] - 1] = why[taken > 0]
    return tokens.astype(np.int32), np.repeat(slots, taken), reasons_of_tokens


def take_back(slots: Slots, table: SlotTable, kv: KVCache) -> None:
    """Take back the tokens of rows that failed; what they computed is not cached."""
    table.delivered[slots] -= 1
    for slot in slots.tolist():
        kv.forget(table.member(slot))
