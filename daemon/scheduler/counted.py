"""What rows drew: a token each, or another number, as rows of steps that draft and verify do.

A plan reckons with one token of each row that it samples, or with as many as it has times. Where a
row drew k more, the worker has written the KV of all but the last behind what was planned, into
blocks that the sequence has, and the sequence is k tokens further than was reckoned. Where it drew
none, the last token of the row is computed again.
"""

from collections.abc import Iterable

import numpy as np

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.in_flight import InFlightStep
from daemon.scheduler.slots import SlotTable
from daemon.state.request import FinishReason
from daemon.wire.columns import ONE, Int32, Int64, Slots, UInt8, any_true

_LENGTH, _ERROR = np.uint8(FinishReason.LENGTH), np.uint8(FinishReason.ERROR)


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
    failed = why == _ERROR
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
