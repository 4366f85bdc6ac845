"""The multi-step plan: decodes computed several times, and answered by a single reply.

Rows whose tokens alone are asked for stay in a program until all are sampled; for others each time
is a plan of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daemon.protocol.worker import Logprobs, Plan, Reply
from daemon.state.batch import Batch
from daemon.state.request import FinishReason
from daemon.wire.columns import Int32, Int64, UInt8, int32

MOST_TIMES = 8
"""Most steps of one program: they share what a plan costs beside its step."""


def check(batch: Batch) -> None:
    """Raise ValueError unless every row decodes, no more than `MOST_TIMES` times."""
    if batch.times > MOST_TIMES:
        raise ValueError(f"a step is computed {MOST_TIMES} times at most, not {batch.times}")
    if (batch.counts != 1).any() or batch.fed.any() or not batch.samples.all():
        raise ValueError("a step is computed several times, but not all of its rows decode")


def plan_of(batch: Batch, time: int) -> Plan:
    """The plan of the `time`-th step, from 0 on; what precedes the steps is done."""
    once = Batch(
        instance=batch.instance,
        step=batch.step,
        slots=batch.slots,
        starts=batch.starts + np.int32(time),
        counts=batch.counts,
        samples=batch.samples,
        fed=batch.fed,
    )
    return Plan(once, int32(), ())


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Which tokens of R rows count: a row has its own up to its first reason.

    A row that fails has one token, which means nothing.
    """

    reasons: UInt8  # [R]
    ends: Int64  # [R]: the time of the last token
    counts: Int64  # [R]
    firsts: Int64  # [R]: index of each row's first token among all that count

    @classmethod
    def of(cls, reasons: UInt8) -> "KeptTokens":
        """Make it from the reasons [R, times] of all tokens."""
        ends = np.where(reasons.any(1), (reasons != 0).argmax(1), reasons.shape[1] - 1)
        why = reasons[np.arange(len(ends)), ends]
        counts = np.where(why == FinishReason.ERROR, 1, ends + 1)
        return cls(why, ends, counts, np.cumsum(counts) - counts)

    def of_all(self, tokens: Int32) -> Int32:
        """The tokens that count, of all [R, times], row by row."""
        kept: Int32 = tokens[np.arange(tokens.shape[1]) < self.counts[:, None]]
        return kept


def joined(replies: Sequence[Reply], waited_s: float) -> Reply:
    """Join the replies of all steps into one; `waited_s` was spent waiting for copies."""
    kept = KeptTokens.of(np.stack([reply.reasons for reply in replies], 1))
    errors = [
        (int(kept.firsts[row]), why)
        for time, reply in enumerate(replies)
        for row, why in reply.errors
        if kept.ends[row] == time  # errors of a row that had ended do not count
    ]
    return Reply(
        step=replies[0].step,
        tokens=kept.of_all(np.stack([reply.tokens for reply in replies], 1)),
        reasons=kept.reasons,
        elapsed_s=sum(reply.elapsed_s for reply in replies) - waited_s,
        idle_s=replies[0].idle_s + waited_s,
        logprobs=_logprobs([reply.logprobs for reply in replies], kept.counts, kept.firsts),
        errors=tuple(sorted(errors)),
        counts=kept.counts.astype(np.int32),
    )


def _logprobs(scores: Sequence[Logprobs | None], counts: Int64, firsts: Int64) -> Logprobs | None:
    """Logprobs of the tokens that are kept, in their order."""
    parts = [(time, part) for time, part in enumerate(scores) if part is not None]
    if not parts:
        return None
    widest = parts[0][1].top_ids.size // max(1, parts[0][1].rows.size)  # the rows are the same
    places: list[Int32] = []
    chosen, ids, values = list[Int32](), list[Int32](), list[Int32]()
    for time, part in parts:
        (kept,) = (counts[part.rows] > time).nonzero()
        places.append(firsts[part.rows[kept]] + time)
        chosen.append(part.chosen[kept])
        ids.append(part.top_ids.reshape(part.rows.size, widest)[kept])
        values.append(part.top_values.reshape(part.rows.size, widest)[kept])
    order = np.argsort(np.concatenate(places), kind="stable")
    return Logprobs(
        rows=np.concatenate(places)[order].astype(np.int32),
        chosen=np.concatenate(chosen)[order],
        top_ids=np.concatenate(ids)[order].ravel(),
        top_values=np.concatenate(values)[order].ravel(),
    )
