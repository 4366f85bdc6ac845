"""From slots and lengths to all that a decode step reads, from the device's own tables."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_CHUNK = 128


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """B rows of one token each. Padding has no length, no block, and position 0."""

    tokens: torch.Tensor  # int64 [B]
    positions: torch.Tensor  # int64 [B]
    blocks: torch.Tensor  # int32 [B]: where the new key and value go; -1: nowhere
    offsets: torch.Tensor  # int32 [B]
    lens: torch.Tensor  # int32 [B]: tokens to attend to, the new one included; 0 for padding
    tables: torch.Tensor  # int32 [B, max_blocks], as far as `lens` reaches

    @staticmethod
    def empty(size: int, block_table: torch.Tensor) -> "DecodeRows":
        """Room for `size` rows of a table [slot, max_blocks], on its device."""
        # Each a piece of its own: one that began anywhere would compile kernels anew.
        tokens, positions = (block_table.new_zeros(size, dtype=torch.int64) for _ in range(2))
        blocks, offsets, lens = (block_table.new_zeros(size) for _ in range(3))
        tables = block_table.new_zeros((size, block_table.shape[1]))
        return DecodeRows(tokens, positions, blocks, offsets, lens, tables)

    def first(self, size: int, num_blocks: int) -> "DecodeRows":
        """The first `size` rows, of at most `num_blocks` blocks each, in the same memory."""
        return DecodeRows(
            self.tokens[:size],
            self.positions[:size],
            self.blocks[:size],
            self.offsets[:size],
            self.lens[:size],
            self.tables[:size, :num_blocks],
        )


def prepare_decode(
    inputs: torch.Tensor,
    last_token: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    rows: DecodeRows,
) -> None:
    """Fill `rows` from `inputs` int64 [2, B]: slots, and tokens in the cache (-1: padding).

    `last_token` int64 [slot], `block_table` int32 [slot, max_blocks], contiguous.
    """
    size = inputs.shape[1]
    _prepare[(size,)](
        inputs, last_token, block_table, rows.tokens, rows.positions, rows.blocks, rows.offsets,
        rows.lens, rows.tables, size, block_table.shape[1], BLOCK_SIZE=block_size, CHUNK=_CHUNK,
        num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["size"])
def _prepare(
    inputs_ptr, last_ptr, table_ptr, tokens_ptr, positions_ptr, blocks_ptr, offsets_ptr, lens_ptr,
    tables_ptr, size, width, BLOCK_SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One row."""
    row = tl.program_id(0)
    slot = tl.load(inputs_ptr + row)
    start = tl.load(inputs_ptr + size + row)
    position = tl.maximum(start, 0)
    tl.store(tokens_ptr + row, tl.load(last_ptr + slot))
    tl.store(positions_ptr + row, position)
    source = table_ptr + slot * width
    block = tl.load(source + position // BLOCK_SIZE)
    tl.store(blocks_ptr + row, tl.where(start >= 0, block, -1))
    tl.store(offsets_ptr + row, (position % BLOCK_SIZE).to(tl.int32))
    tl.store(lens_ptr + row, (start + 1).to(tl.int32))
    used = tl.where(start >= 0, position // BLOCK_SIZE + 1, 0).to(tl.int32)
    target = tables_ptr + row.to(tl.int64) * width
    for first in range(0, used, CHUNK):
        cell = first + tl.arange(0, CHUNK)
        tl.store(target + cell, tl.load(source + cell, mask=cell < used), mask=cell < used)
