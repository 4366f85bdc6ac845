"""Plans as the Core would send them, for sequences that only a benchmark knows of."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from daemon.protocol.worker import Join, Plan
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import Column, int32

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Part:
    """What a plan computes of one row: `count` tokens from position `start` on.

    `tokens` names them; without, the worker takes the last token that it drew for the row.
    """

    slot: int
    start: int
    count: int = 1
    sampled: bool = True
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Swaps:
    """Blocks that leave for host places, and host places whose blocks come back; int32 each."""

    out_blocks: Column
    out_places: Column
    in_places: Column
    in_blocks: Column


class Plans:
    """Rows in slots 0 .. B-1 with room for `capacity` tokens each; their blocks lie scattered.

    The first plan seats them all; `leave` takes them out again.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        block_size: int,
        sampling: SamplingParams = GREEDY,
        prompt_tokens: int = 1,
        first_step: int = 1,
    ) -> None:
        self._rows = rows
        self._step = first_step
        self.blocks_each = -(-capacity // block_size)
        blocks = list(range(self.blocks_each * rows))
        random.Random(0).shuffle(blocks)
        self._table = (
            np.repeat(np.arange(rows, dtype=np.int32), self.blocks_each),
            np.tile(np.arange(self.blocks_each, dtype=np.int32), rows),
            int32(blocks),
        )
        self._joins = tuple(
            Join(slot, slot, prompt_tokens, sampling, int32()) for slot in range(rows)
        )

    @property
    def next_step(self) -> int:
        """The number that the next plan will have."""
        return self._step

    def decode(self, start: int, swaps: Swaps | None = None) -> Plan:
        """One token of every row, each of which has `start` tokens before it."""
        return self.plan([Part(slot, start) for slot in range(self._rows)], swaps)

    def leave(self) -> Plan:
        """Every row leaves; a step of one token in slot 0 carries the message."""
        return self.plan([Part(0, 0, sampled=False, tokens=(0,))], left=range(self._rows))

    def plan(
        self, parts: Sequence[Part], swaps: Swaps | None = None, left: Sequence[int] = ()
    ) -> Plan:
        """A step of these parts, in order."""
        (slots, indices, blocks), joins = self._table, self._joins
        self._table, self._joins = (int32(), int32(), int32()), ()
        none = int32()
        batch = Batch(
            instance=0,
            step=self._step,
            slots=int32([part.slot for part in parts]),
            starts=int32([part.start for part in parts]),
            counts=int32([part.count for part in parts]),
            samples=np.array([part.sampled for part in parts], np.uint8),
            fed=np.array([bool(part.tokens) for part in parts], np.uint8),
            table_slots=slots,
            table_indices=indices,
            table_blocks=blocks,
            copy_sources=none,
            copy_targets=none,
            left_slots=int32(left),
            joined_slots=int32([join.slot for join in joins]),
            joined_sequences=np.array([join.sequence for join in joins], np.int64),
            out_blocks=swaps.out_blocks if swaps else none,
            out_places=swaps.out_places if swaps else none,
            in_places=swaps.in_places if swaps else none,
            in_blocks=swaps.in_blocks if swaps else none,
        )
        self._step += 1
        tokens = [token for part in parts for token in part.tokens]
        return Plan(batch, int32(tokens), joins)


def chunk(slot: int, start: int, count: int, vocab: int, sampled: bool) -> Part:
    """A part of a prompt, its tokens drawn at random."""
    chance = random.Random(start)
    return Part(slot, start, count, sampled, tuple(chance.choices(range(vocab), k=count)))
