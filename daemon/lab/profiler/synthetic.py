"""Synthetic steps: rows of chosen lengths and contexts, as plans for a worker."""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from daemon.cost.work import StepWork, within_windows, work_of
from daemon.protocol.worker import Join, Plan
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import Int32, int32

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_NONE = int32()
_NOTHING = Batch(
    instance=0,
    step=0,
    slots=_NONE,
    starts=_NONE,
    counts=_NONE,
    samples=_NONE.astype(np.uint8),
    fed=_NONE.astype(np.uint8),
)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One sequence's part in a step."""

    count: int  # tokens computed
    before: int  # tokens in the KV cache
    sampled: bool = True


Rows = tuple[StepRow, ...]


@dataclass(frozen=True, slots=True)
class PlanMaker:
    """Makes plans for a worker that is used for nothing else.

    Row r sits in slot r; its blocks follow those of row r - 1, from block 0 on. Where layers have
    windows, each group of layers has blocks of its own, behind those of the group before.
    """

    block_size: int
    max_slots: int
    windows: tuple[int, ...] = ()  # of the worker's groups of layers; empty: all see all
    row_blocks: int = 0  # cells that a group has of a block table's row

    def opening(self) -> Plan:
        """Assign a sequence to every slot; computes nothing."""
        slots = np.arange(self.max_slots, dtype=np.int32)
        joins = tuple(Join(slot, slot, 1, _GREEDY, _NONE) for slot in slots.tolist())
        seated = replace(_NOTHING, joined_slots=slots, joined_sequences=slots.astype(np.int64))
        return Plan(seated, _NONE, joins)

    def copies(self, step: int, sources: Int32, targets: Int32) -> Plan:
        """Copy blocks; computes nothing."""
        batch = replace(_NOTHING, step=step, copy_sources=sources, copy_targets=targets)
        return Plan(batch, _NONE, ())

    def tables(self, step: int, rows: Rows) -> Plan:
        """Give the rows' slots their blocks; computes nothing."""
        held = np.array([self._blocks(row) for row in rows])
        blocks, slots = np.arange(held.sum()), np.repeat(np.arange(len(rows)), held)
        indices = blocks - np.repeat(np.cumsum(held) - held, held)
        groups = range(self.num_groups)
        batch = replace(
            _NOTHING,
            step=step,
            table_slots=int32(np.concatenate([slots for _ in groups])),
            table_indices=int32(
                np.concatenate([indices + group * self.row_blocks for group in groups])
            ),
            table_blocks=int32(np.arange(blocks.size * self.num_groups)),
        )
        return Plan(batch, _NONE, ())

    def step(self, step: int, rows: Rows) -> Plan:
        """Compute the rows; chunks are fed their tokens, decodes use the worker's own."""
        batch = self.batch(step, rows)
        num_fed = int(batch.counts[batch.fed == 1].sum())
        return Plan(batch, (np.arange(num_fed, dtype=np.int32) * 7) % 97, ())

    def batch(self, step: int, rows: Rows) -> Batch:
        """The rows as the Core would plan them."""
        counts = int32([row.count for row in rows])
        return Batch(
            instance=0,
            step=step,
            slots=np.arange(len(rows), dtype=np.int32),
            starts=int32([row.before for row in rows]),
            counts=counts,
            samples=np.array([row.sampled for row in rows], np.uint8),
            fed=(counts > 1).astype(np.uint8),
        )

    def num_blocks(self, rows: Rows) -> int:
        """Blocks that the rows need together."""
        return self.num_groups * sum(self._blocks(row) for row in rows)

    def work(self, rows: Rows) -> StepWork:
        """The step's work, for the cost model."""
        batch = self.batch(0, rows)
        return within_windows(work_of(batch), batch, self.windows)

    @property
    def num_groups(self) -> int:
        """Groups of layers with blocks of their own."""
        return max(1, len(self.windows))

    def _blocks(self, row: StepRow) -> int:
        return -(-(row.before + row.count) // self.block_size)
