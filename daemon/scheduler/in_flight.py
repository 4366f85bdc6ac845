"""Steps in flight: the record of each until its worker answers, and the answer.

A plan counts one token of each row that it samples, or as many as it has times. Where a row sampled
k more, the worker has written the KV of all but the last behind what was planned, into blocks that
the sequence has, and the sequence is k tokens further than planned. Where it sampled none, the last
token of the row is computed again.
"""

from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np

from daemon.cost.work import StepWork
from daemon.memory.kv_cache import KVCache
from daemon.scheduler.slots import SlotTable
from daemon.state.request import FinishReason
from daemon.state.sequence import Sequence
from daemon.wire.columns import Bools, Int32, Int64, Slots, UInt8, int32

_ERROR = FinishReason.ERROR
_NONE, _LENGTH, _FAILED = map(np.uint8, (FinishReason.NONE, FinishReason.LENGTH, _ERROR))
_NO_DRAFTS = int32()


class InFlightStep(msgspec.Struct, frozen=True, gc=False):
    """A step that has not answered: its R sampled rows, in order."""

    step: int
    slots: Slots  # [R]
    sequences: Int64  # [R]
    firsts: Slots  # slots whose first token since joining this is; R or fewer
    finals: Slots  # indices of rows whose token is the sequence's last by max_tokens
    delivered: Int32  # [R]: tokens of each sequence with this one
    departures: int  # of all slots, when the step was planned
    work: StepWork
    drafts: Int32 = _NO_DRAFTS  # [R] verified beside the rows' own tokens; empty: none

    def alive(self, table: SlotTable) -> Bools:
        """Whether the sequence of each row has had its slot since; bool [R]."""
        alive: Bools = table.epoch[self.slots] <= self.departures
        return alive


class Answer(msgspec.Struct, frozen=True):
    """The outcome of an answered step: the T tokens that count."""

    rows: Int32  # [T] index among sampled tokens: one of each row, or by its counts
    sequences: Int64  # [T]; one sequence's tokens follow each other
    reasons: UInt8  # [T] FinishReason; ERROR: the row failed, and this is no token
    joined: list[Sequence]  # sequences whose first token this was, ever or after a preemption
    ended: list[Sequence]
    causes: list[int]  # FinishReason of each of `ended`
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
        self._num_drafting = 0  # steps

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def drafts(self) -> bool:
        """Whether rows in flight may sample more than a token each."""
        return self._num_drafting > 0

    @property
    def times(self) -> int:
        """Tokens that they sample of a row in all of them; of other rows fewer."""
        return sum(step.work.times for step in self.steps)

    @property
    def newest(self) -> InFlightStep:
        """The step planned last. Raises IndexError if none is in flight."""
        return self.steps[-1]

    def add(self, flown: InFlightStep) -> None:
        """Add a step that was just planned."""
        self._num_drafting += flown.drafts.size > 0
        self.steps.append(flown)

    def answer(self, step: int) -> InFlightStep | None:
        """The oldest step if it is the one that answered; None for an unexpected answer."""
        if self.steps and self.steps[0].step == step:
            flown = self.steps.popleft()
            self._num_drafting -= flown.drafts.size > 0
            return flown
        return None


# Sampled tokens


def count_one_each(
    flown: InFlightStep, reasons: UInt8, table: SlotTable, numbers: Int32
) -> tuple[Int32, Slots, Int64, UInt8]:
    """Count a token of each row that is not void; its (index, slot, sequence, reason). `numbers`:
    0, 1, ... [R].
    """
    slots, sequences, delivered = flown.slots, flown.sequences, flown.delivered
    why, rows, finals = reasons, numbers, flown.finals
    if finals.size:
        why = reasons.copy()
        why[finals[reasons[finals] == _NONE]] = _LENGTH
    if table.departures != flown.departures:
        rows = rows[flown.alive(table)]
        slots, sequences, delivered, why = slots[rows], sequences[rows], delivered[rows], why[rows]
    table.delivered[slots] = delivered
    return rows, slots, sequences, why


def check_answer(
    flown: InFlightStep,
    reasons: UInt8,
    counts: Int32,
    offers: Int32,
    later: Iterable[InFlightStep],
    table: SlotTable,
) -> None:
    """Raises ValueError for columns of another length than the rows, and for invalid counts: a row
    that ends without a token, not one token of a row that a `later` step goes on from, or not as
    many as its times of a row that goes on.
    """
    times, num_rows = flown.work.times, flown.slots.size
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
    odd = flown.slots[(counts != 1) & flown.alive(table)]
    for step in later:
        if np.isin(odd, step.slots).any():
            raise ValueError(f"step {flown.step}: step {step.step} expects one token of each row")


def count_tokens(
    flown: InFlightStep, reasons: UInt8, counts: Int32, table: SlotTable, kv: KVCache
) -> tuple[Int32, Slots, UInt8]:
    """Count the sampled tokens, as far as their sequences still run and their limits allow.

    Returns the T tokens that count: index among all sampled, slot, and reason; only the last token
    of a sequence has a reason. Raises ValueError where KV is beyond a sequence's blocks.
    """
    (live,) = flown.alive(table).nonzero()
    slots, why, sampled = flown.slots[live], reasons[live].copy(), counts[live]
    failed = why == _FAILED
    left = table.last_position[slots] + 1 - table.delivered[slots]
    taken = np.minimum(np.where(failed, 1, sampled), left)
    why[(taken == left) & ((why == 0) | (taken < sampled)) & ~failed] = _LENGTH
    table.delivered[slots] += taken
    more = taken - flown.work.times
    table.computed[slots] += more
    table.num_computed_tokens += int(more.sum())
    more[np.isin(live, flown.finals)] = 0
    table.known[slots] += more
    if (table.computed[slots] > kv.table.held[slots] * kv.block_size).any():
        raise ValueError(f"step {flown.step}: a row sampled more tokens than its blocks hold")
    ends = np.cumsum(taken)
    begins = (np.cumsum(counts) - counts)[live]
    tokens = np.repeat(begins - (ends - taken), taken) + np.arange(int(taken.sum()))
    reasons_of_tokens = np.zeros(tokens.size, np.uint8)
    reasons_of_tokens[ends[taken > 0] - 1] = why[taken > 0]
    return tokens.astype(np.int32), np.repeat(slots, taken), reasons_of_tokens


def take_back(slots: Slots, table: SlotTable, kv: KVCache) -> None:
    """Take back the tokens of rows that failed; their blocks are not cached."""
    table.delivered[slots] -= 1
    for slot in slots.tolist():
        kv.forget(table.member(slot))
