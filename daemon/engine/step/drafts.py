"""Drafted tokens of a plan: each is a row of its own, and is kept if the model samples it.

A row that brings k drafts becomes k + 1 rows of one token each, one position behind the other. So
it is computed as k + 1 sequences would be, by the same programs. Each row samples as it would
without drafts: the token at a position depends on (seed, position) and on the tokens before it,
which are the sequence's own as long as every draft before was sampled. The first token that differs
from its draft is the sequence's next one, and what was computed behind it is overwritten later.

Penalties see the drafts before a row as its history. Answers that follow a grammar have no drafts:
their masks depend on a matcher that cannot look ahead.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.sampled import SampledTokens
from daemon.protocol.worker import Logprobs, Plan
from daemon.state.batch import Batch
from daemon.wire.columns import Column, Int32, Int64, int32


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """A plan's rows as they are computed."""

    batch: Batch
    inputs: Column  # int32, as in `Plan`
    drafted: Drafted | None = None  # None: no row brings drafts


def rows_of(plan: Plan, slots: Slots, alike: Callable[[int, int], bool]) -> PlannedRows:
    """The rows of a plan, drafts among them; without drafts where a step of that size is not
    `alike`, and might sample other tokens. Raises ValueError where drafts contradict the plan.
    """
    batch = plan.batch
    if not plan.drafts.size:
        return PlannedRows(batch, plan.inputs)
    if slots.last_token.is_cuda:
        raise ValueError("a device that begins a step before it has read the last takes no drafts")
    drafts = batch.drafts.astype(np.int64)
    if int(drafts.sum()) != plan.drafts.size or (batch.counts[drafts > 0] != 1).any():
        raise ValueError(
            f"the plan brings {plan.drafts.size} drafts where there are {drafts.sum()}"
        )
    # All layers compute the tokens, but for the end of the last one and the head: sampled ones.
    sampled = int(np.count_nonzero(batch.samples))
    counts = batch.num_tokens - plan.drafts.size, sampled
    if not all(alike(count, count + plan.drafts.size) for count in counts):
        return PlannedRows(msgspec.structs.replace(batch, drafts=int32()), plan.inputs)
    rows = np.repeat(np.arange(drafts.size), drafts + 1)
    firsts = np.cumsum(drafts + 1) - (drafts + 1)
    behind = np.arange(rows.size) - firsts[rows]
    is_draft = behind > 0
    wide = msgspec.structs.replace(
        batch,
        slots=batch.slots[rows],
        starts=(batch.starts[rows] + behind).astype(np.int32),
        counts=batch.counts[rows],
        samples=batch.samples[rows],
        fed=batch.fed[rows] | is_draft.astype(np.uint8),
        drafts=int32(),
    )
    return PlannedRows(
        wide, _inputs(wide, plan, is_draft), _drafted(wide, plan.drafts, is_draft, slots)
    )


def _inputs(wide: Batch, plan: Plan, is_draft: np.ndarray) -> Int32:
    """The tokens of all fed rows, drafts in their places."""
    tokens_fed = np.where(wide.fed.astype(bool), wide.counts, 0)
    inputs = np.empty(int(tokens_fed.sum()), np.int32)
    places = np.repeat(is_draft, tokens_fed)
    inputs[places], inputs[~places] = plan.drafts, plan.inputs
    return inputs


def _drafted(wide: Batch, drafts: Column, is_draft: np.ndarray, slots: Slots) -> Drafted:
    """The drafted tokens of the rows that are sampled."""
    expected = np.full(is_draft.size, -1, np.int64)
    is_end = np.zeros(is_draft.size, np.bool_)
    (places,) = is_draft.nonzero()
    expected[places - 1] = drafts
    is_end[places - 1] = slots.are_ends(wide.slots[places], drafts)
    sampled = wide.samples.astype(bool)
    return Drafted(expected[sampled], is_end[sampled], ~is_draft[sampled])


@dataclass(frozen=True, slots=True)
class KeptDraws:
    """The sampled tokens that count: T tokens of R rows."""

    rows: Int64  # [T] among all that were sampled
    lasts: Int64  # [R] the last of each row, among the T
    counts: Int32  # [R]

    def slots(self, flat: FlatBatch) -> Int32:
        """The slot of each of the T."""
        slots: Int32 = flat.sampled_slots[self.rows]
        return slots

    def draws(self, draws: SampledTokens) -> SampledTokens:
        """The draws at these T rows."""
        (broken,) = np.isin(self.rows, draws.broken).nonzero()
        return SampledTokens(draws.tokens[self.rows], self._logprobs(draws.logprobs), broken)

    def _logprobs(self, scores: Logprobs | None) -> Logprobs | None:
        if scores is None:
            return None
        kept = np.isin(scores.rows, self.rows)
        return Logprobs(
            rows=np.searchsorted(self.rows, scores.rows[kept]).astype(np.int32),
            chosen=scores.chosen[kept],
            top_ids=scores.top_ids.reshape(kept.size, -1)[kept].ravel(),
            top_values=scores.top_values.reshape(kept.size, -1)[kept].ravel(),
        )


def kept_of(drafted: Drafted, kept: np.ndarray) -> KeptDraws:
    """The sampled rows that are `kept`."""
    (rows,) = kept.nonzero()
    number = np.cumsum(drafted.firsts) - 1
    counts = np.bincount(number[rows], minlength=int(drafted.firsts.sum()))
    return KeptDraws(rows, np.cumsum(counts) - 1, counts.astype(np.int32))
