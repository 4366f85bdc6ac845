"""A batch as one flattened row of tokens: where each token is, and what it may attend to."""

from dataclasses import dataclass, field, replace

import numpy as np

from daemon.state.batch import Batch
from daemon.wire.columns import Column, Int32, Int64, int32


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """B rows of a plan over T flattened tokens, all on the host."""

    tokens: Int64  # [T] token ids; 0 where a token is its slot's own last one
    own_tokens: Int64  # [U] index of those, each the only one of its row
    own_slots: Int64  # [U]
    slots: Int32  # [B]
    positions: Int64  # [T] absolute, from 0
    blocks: Int64  # [T] physical block of each token's key and value
    offsets: Int64  # [T] place in that block
    row_offsets: Int32  # [B] index of each row's first token
    starts: Int32  # [B] tokens in the cache before this step
    counts: Int32  # [B] tokens of this step
    block_tables: Int32  # [B, most blocks that any row uses]
    single_rows: Int64  # rows of one token
    chunk_rows: Int64  # rows of several
    sampled_tokens: Int64  # [R] index of the tokens whose logits are sampled
    sampled_slots: Int32  # [R]
    sampled_positions: Int64  # [R] absolute position of the token to be sampled
    whole: bool = True  # all of a plan, not a part of it
    further: tuple[tuple[Int64, Int32], ...] = ()  # `blocks`, `block_tables` of groups of layers
    state_pages: Int32 = field(default_factory=int32)  # [B, pages of a sequence's states], if any

    def of_group(self, group: int) -> "FlatBatch":
        """The batch with the blocks of one group of layers."""
        if not group:
            return self
        blocks, tables = self.further[group - 1]
        return replace(self, blocks=blocks, block_tables=tables)

    def of_chunks(self, num_tokens: int, block_size: int) -> "FlatBatch":
        """The batch as attention sees it whose queries see the keys of their own chunk alone: each
        chunk of a sequence, `num_tokens` from a multiple of that on, is a row that begins there.

        `num_tokens` are whole blocks. Tokens stay where they are; more rows may be the result.
        """
        ends = self.starts + self.counts
        first = self.starts // num_tokens
        num_chunks = (ends - 1) // num_tokens - first + 1
        rows = np.repeat(np.arange(len(first)), num_chunks)
        before = np.cumsum(num_chunks) - num_chunks
        chunks = first[rows] + np.arange(len(rows)) - before[rows]
        begins = np.maximum(self.starts[rows], chunks * num_tokens)
        counts = np.minimum(ends[rows], (chunks + 1) * num_tokens) - begins
        num_blocks = num_tokens // block_size
        most = self.block_tables.shape[1]
        indices = chunks[:, None] * num_blocks + np.arange(min(num_blocks, most))
        return replace(
            self,
            slots=self.slots[rows],
            row_offsets=(self.row_offsets[rows] + begins - self.starts[rows]).astype(np.int32),
            starts=(begins - chunks * num_tokens).astype(np.int32),
            counts=counts.astype(np.int32),
            block_tables=self.block_tables[rows[:, None], np.minimum(indices, most - 1)],
            single_rows=(counts == 1).nonzero()[0],
            chunk_rows=(counts != 1).nonzero()[0],
        )


def flatten(
    batch: Batch,
    inputs: Column,
    block_table: Int32,
    block_size: int,
    num_groups: int = 1,
    num_state_pages: int = 0,
) -> FlatBatch:
    """Lay a plan's rows out after each other.

    `inputs` [sum of counts over fed rows]; `block_table` [slot, block], a part of each row for each
    group of layers and one for states. Raises ValueError where a plan contradicts itself.
    """
    counts = batch.counts.astype(np.int64)
    ends = np.cumsum(counts)
    row_offsets = ends - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    tokens, own = _tokens(batch, inputs, rows)
    positions = batch.starts[rows] + (np.arange(len(rows)) - row_offsets[rows])
    used = int(positions.max(initial=0)) // block_size + 1 if num_groups else 0
    tables = block_table[batch.slots, :used]
    blocks = np.zeros(len(rows), np.int64)  # where no layer has keys
    if num_groups:
        blocks = tables[rows, positions // block_size].astype(np.int64)
    sampled = batch.samples.nonzero()[0]
    num_cells = block_table.shape[1] - num_state_pages
    width, further = num_cells // max(num_groups, 1), list[tuple[Int64, Int32]]()
    for group in range(1, num_groups):
        pages = block_table[batch.slots, group * width : group * width + used]
        further.append((pages[rows, positions // block_size].astype(np.int64), pages))
    return FlatBatch(
        tokens=tokens,
        own_tokens=row_offsets[own],
        own_slots=batch.slots[own].astype(np.int64),
        slots=batch.slots,
        positions=positions,
        blocks=blocks,
        offsets=positions % block_size,
        row_offsets=row_offsets.astype(np.int32),
        starts=batch.starts,
        counts=batch.counts,
        block_tables=tables,
        single_rows=(batch.counts == 1).nonzero()[0],
        chunk_rows=(batch.counts != 1).nonzero()[0],
        sampled_tokens=ends[sampled] - 1,
        sampled_slots=batch.slots[sampled],
        sampled_positions=(batch.starts + batch.counts)[sampled].astype(np.int64),
        further=tuple(further),
        state_pages=block_table[batch.slots, block_table.shape[1] - num_state_pages :],
    )


def part(flat: FlatBatch, row: int, offset: int, count: int) -> FlatBatch:
    """`count` tokens of one row, from its `offset`-th on, as a batch of its own."""
    first = int(flat.row_offsets[row]) + offset
    span = slice(first, first + count)
    sampled = (flat.sampled_tokens >= first) & (flat.sampled_tokens < first + count)
    own = flat.own_tokens == first
    only, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    return FlatBatch(
        tokens=flat.tokens[span],
        own_tokens=flat.own_tokens[own] - first,
        own_slots=flat.own_slots[own],
        slots=flat.slots[row : row + 1],
        positions=flat.positions[span],
        blocks=flat.blocks[span],
        offsets=flat.offsets[span],
        row_offsets=int32([0]),
        starts=flat.starts[row : row + 1] + np.int32(offset),
        counts=int32([count]),
        block_tables=flat.block_tables[row : row + 1],
        single_rows=only if count == 1 else none,
        chunk_rows=none if count == 1 else only,
        sampled_tokens=flat.sampled_tokens[sampled] - first,
        sampled_slots=flat.sampled_slots[sampled],
        sampled_positions=flat.sampled_positions[sampled],
        whole=False,
        further=tuple((blocks[span], tables[row : row + 1]) for blocks, tables in flat.further),
        state_pages=flat.state_pages[row : row + 1],
    )


def _tokens(batch: Batch, inputs: Column, rows: Int64) -> tuple[Int64, Int64]:
    """Named tokens where a row is fed, and the rows whose one token is their slot's own last."""
    tokens = np.zeros(len(rows), np.int64)
    fed = batch.fed[rows].astype(bool)
    if int(fed.sum()) != len(inputs):
        raise ValueError(f"the plan feeds {int(fed.sum())} tokens but brings {len(inputs)}")
    own = (batch.fed == 0).nonzero()[0]
    if (batch.counts[own] != 1).any():
        raise ValueError("a row that is not fed computes exactly one token")
    tokens[fed] = inputs
    return tokens, own
