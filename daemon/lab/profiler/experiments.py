"""The steps to measure: Vidur's triage (section 4.3) as a list, the most informative ones first.

Single prompts of growing length show each token's cost, tile effects included; prompts that
continue stored tokens, and several at once, show prefill attention; decodes at growing contexts
show decode attention; rows without logits show the cost of sampling. Mixed and skewed steps are
held out: no fit sees them, and the error is taken on them.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from daemon.lab.profiler.synthetic import Rows, StepRow

MOST_CONTEXT_TOKENS = 16 * 1024
"""Most tokens of stored context that one step reads: beyond, time grows linearly."""

_BEFORE = (128, 1024, 4096)
_HELD_OUT = 24


class Kind(StrEnum):
    """The cost that an experiment shows."""

    TOKENS = "tokens"
    PREFILL = "prefill"
    DECODE = "decode"
    SAMPLED = "sampled"
    MIXED = "mixed"
    SKEWED = "skewed"


HELD_OUT = frozenset({Kind.MIXED, Kind.SKEWED})


@dataclass(frozen=True, slots=True)
class Experiment:
    """A step to measure; a short budget leaves out the experiments of higher `rank`."""

    kind: Kind
    rows: Rows
    rank: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class LoadedLimits:
    """The limits with which the worker was loaded."""

    max_batch_tokens: int
    max_slots: int
    max_len: int  # tokens of one sequence
    num_blocks: int
    block_size: int

    def allow(self, rows: Rows) -> bool:
        """Whether the worker can compute such a step."""
        size = self.block_size
        blocks = sum(-(-(row.before + row.count) // size) for row in rows)
        return (
            0 < len(rows) <= self.max_slots
            and sum(row.count for row in rows) <= self.max_batch_tokens
            and all(0 <= row.before <= self.max_len - row.count for row in rows)
            and blocks <= self.num_blocks
            and sum(row.before for row in rows) <= MOST_CONTEXT_TOKENS
        )


def experiments(limits: LoadedLimits) -> list[Experiment]:
    """All experiments within the limits, in order of importance, without duplicates."""
    found = [
        *_tokens(limits),
        *_decodes(limits),
        *_prefills(limits),
        *_sampled(),
        *_held_out(limits),
    ]
    unique = {
        experiment.rows: experiment
        for experiment in reversed(found)
        if limits.allow(experiment.rows)
    }
    kept = [experiment for experiment in found if unique.get(experiment.rows) is experiment]
    # Among equal ranks those of few tokens go first: they cost little and occur most.
    return sorted(kept, key=lambda experiment: experiment.rank)


def longer_prompts(most_tokens: int) -> list[Experiment]:
    """Single prompts, each twice as long as the last, to find the size beyond which tokens gain
    nothing.
    """
    return [_chunk(Kind.TOKENS, count, 0, 0) for count in doubling(16, most_tokens)]


def _tokens(limits: LoadedLimits) -> list[Experiment]:
    """Single prompts from their start: the token-level operators, products' tiles included."""
    most = min(limits.max_batch_tokens, limits.max_len)
    coarse = doubling(2, most)
    finer = [3 * count // 2 for count in coarse]
    past = [count + 1 for count in coarse if count >= 16]
    found = [_chunk(Kind.TOKENS, count, 0, 0) for count in coarse]
    found += [_chunk(Kind.TOKENS, count, 0, 1) for count in (*finer, *past)]
    found += [_chunk(Kind.TOKENS, count, 0, 2) for count in (*range(2, 17), *range(24, 129, 8))]
    found += [_chunk(Kind.TOKENS, count, 0, 3) for count in range(160, most, 32)]
    return found


def _decodes(limits: LoadedLimits) -> list[Experiment]:
    """Single-token rows of equal contexts, over a grid."""
    found = []
    coarse = doubling(1, limits.max_slots)
    finer = sorted({3, 5, 6, 7, *(3 * count // 2 for count in coarse[2:]), 33})
    contexts = [16, *(context for context in (256, 1024, 4096) if context <= limits.max_len)]
    for rank, counts, columns in ((0, coarse, contexts), (1, finer, contexts[:3:2])):
        for count in counts:
            for place, context in enumerate(columns):
                row = StepRow(1, context - 1)
                found.append(Experiment(Kind.DECODE, (row,) * count, rank + (place > 2)))
    return found


def _prefills(limits: LoadedLimits) -> list[Experiment]:
    """Prompts that continue stored tokens, and several prompts in one step."""
    found = []
    for rank, before in enumerate(_BEFORE, 1):
        for count in doubling(16, limits.max_batch_tokens, 4):
            start = min(before, limits.max_len - count)
            found.append(_chunk(Kind.PREFILL, count, start, rank, sampled=False))
    for place, (number, count, before) in enumerate(
        ((8, 16, 0), (4, 64, 0), (16, 4, 0), (16, 8, 64), (2, 128, 256), (32, 2, 16))
    ):
        rows = (StepRow(count, before),) * number
        found.append(Experiment(Kind.PREFILL, rows, 1 + place // 3))
    return found


def _sampled() -> list[Experiment]:
    """The same rows with and without logits."""
    found = []
    for rank, (number, count) in enumerate(((48, 1), (1, 64), (8, 16))):
        for sampled in sorted({0, 1, 4, number // 2, number}):
            rows = tuple(StepRow(count, 16, index < sampled) for index in range(number))
            if sampled <= number:
                found.append(Experiment(Kind.SAMPLED, rows, 1 + rank))
    return found


def _held_out(limits: LoadedLimits) -> list[Experiment]:
    """Steps as they occur: decodes of unequal contexts, alone and beside chunks of prompts."""
    chance = np.random.default_rng(0)
    found = []
    for number in range(_HELD_OUT):
        mixed = number % 3 != 2
        decodes = int(min(limits.max_slots - 1, 2 ** chance.uniform(0, 6.5)))
        rows = tuple(StepRow(1, _context(limits, chance)) for _ in range(decodes))
        if mixed:
            room = max(2, limits.max_batch_tokens - decodes)
            # Evenly over the octaves, the longest ones more often: as the rest of a full budget.
            octave = chance.uniform(min(2.0, np.log2(room)), np.log2(room) + 0.3)
            count = int(min(room, 2**octave))
            before = int(chance.integers(0, 2)) * _context(limits, chance)
            before = max(0, min(before, limits.max_len - count))
            rows = (*rows, StepRow(count, before, bool(chance.integers(0, 2))))
        found.append(Experiment(Kind.MIXED if mixed else Kind.SKEWED, rows, number // 8))
    return found


def _context(limits: LoadedLimits, chance: np.random.Generator) -> int:
    """Stored tokens of a sequence, distributed like those of conversations."""
    return int(min(limits.max_len - 2, max(1.0, chance.lognormal(np.log(300), 1.0))))


def _chunk(kind: Kind, count: int, before: int, rank: int, sampled: bool = True) -> Experiment:
    return Experiment(kind, (StepRow(count, before, sampled),), rank)


def doubling(first: int, last: int, factor: int = 2) -> list[int]:
    """first, first * factor, ... and last."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]
