"""Matrix products of few rows over quantised weights: y = x W^T + bias, W read in its blocks.

Shapes, everywhere: states [T, in_features]; data uint8 [out_features, bytes of a row]; bias
[out_features] or None; the result [T, out_features], in the states' type. All are dense. Sums are
float32 and rounded once. The same arguments give the same bits every time.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.blocks import BlockKind, tile
from daemon.engine.cuda.triton.skinny import Scratch, add_parts, product_type, runner
from daemon.models.formats import WeightFormat

LEAST_COLUMNS = 128
"""Least columns of a tile: the longest group of any format."""
TENSOR_ROWS = 16
"""Rows of states from which a tile is multiplied by tensor cores."""


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The tile of a single program of a product, and its warps: powers of two."""

    rows: int  # of states: 1, 2, 4, or from 16
    outputs: int  # rows of the weight; from 16 where states have 16 rows or more
    columns: int  # read at a time, from `LEAST_COLUMNS`
    warps: int

    def count(self, rows: int, out_features: int) -> tuple[int, int]:
        """Tiles along the rows of states, and along those of the weight."""
        return -(-rows // self.rows), -(-out_features // self.outputs)


def block_product(
    form: WeightFormat,
    states: torch.Tensor,
    data: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    block_tile: BlockTile,
    splits: int,
    scratch: Scratch,
    compile_only: bool = False,
) -> torch.Tensor:
    """A program computes a tile of y: with few rows all of it, with more one of `splits` parts of
    its sum. `scratch` must have room (`BlockTile.count`) where `splits` > 1. `compile_only`:
    nothing is computed, only the kernel is made.
    """
    rows, in_features = states.shape
    out_features, row_bytes = data.shape
    constants = BlockKind.of(form).constants(block_tile.columns)
    constants |= {"ROWS": block_tile.rows, "OUTPUTS": block_tile.outputs}
    grid = block_tile.count(rows, out_features)
    if block_tile.rows < TENSOR_ROWS:
        run = runner(_summed, grid, compile_only)
        run(
            states, data, bias, out, rows, out_features, in_features, row_bytes,
            **constants, num_warps=block_tile.warps,
        )  # fmt: skip
        return out
    run = runner(_multiplied, (*grid, splits), compile_only)
    run(
        states, data, bias, out, scratch.partial, scratch.counters,
        rows, out_features, in_features, row_bytes, splits,
        **constants, PRODUCT=product_type(states.dtype), num_warps=block_tile.warps, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def summed_blocks(
    states, used, start, in_features,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, OUTPUTS]: products of rows that begin at `states` [ROWS], of which some are
    `used`, and of a weight's rows at `start` [OUTPUTS], without tensor cores.
    """
    num_groups = in_features // GROUP_LEN
    acc = tl.zeros([ROWS, OUTPUTS, GROUPS, GROUP_LEN], tl.float32)
    for begin in range(0, num_groups, GROUPS):
        group = begin + tl.arange(0, GROUPS)
        inside = tl.minimum(group, num_groups - 1)
        weight = tile(start, inside, NUMBERS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES)
        column = group[:, None] * GROUP_LEN + tl.arange(0, GROUP_LEN)[None, :]
        there = used[:, None, None] & (column < in_features)[None, :, :]
        cells = states[:, None, None] + column[None, :, :]
        state = tl.load(cells, mask=there, other=0.0).to(tl.float32)
        # Rounded as wherever weights are unpacked: a text must not depend on its batch.
        weight = weight.to(states.dtype.element_ty).to(tl.float32)
        acc += weight[None, :, :, :] * state[:, None, :, :]
    return tl.sum(tl.sum(acc, 3), 2)


@triton.jit
def multiplied_blocks(
    states, used, start, first, stop, in_features,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """float32 [OUTPUTS, ROWS]: as `summed_blocks` by tensor cores and transposed, of the groups
    from `first` to `stop`.
    """
    num_groups = in_features // GROUP_LEN
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for begin in range(first, stop, GROUPS):
        inside = tl.minimum(begin + tl.arange(0, GROUPS), num_groups - 1)
        weight = tile(start, inside, NUMBERS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES)
        column = (begin * GROUP_LEN + tl.arange(0, GROUPS * GROUP_LEN))[None, :]
        there = used[:, None] & (column < in_features)
        state = tl.load(states[:, None] + column, mask=there, other=0.0)
        weight = tl.reshape(weight.to(PRODUCT), [OUTPUTS, GROUPS * GROUP_LEN])
        acc = tl.dot(weight, tl.trans(state).to(PRODUCT), acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["rows"])
def _summed(
    states_ptr, data_ptr, bias_ptr, out_ptr, rows, out_features, in_features, row_bytes,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """A tile of y without tensor cores; what each thread has is added up once, at the end."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    # What lies beyond the last repeats it: weights that are no part of y meet states of 0.
    start = data_ptr + tl.minimum(output, out_features - 1).to(tl.int64) * row_bytes
    total = summed_blocks(
        states_ptr + row * in_features, row < rows, start, in_features,
        ROWS, OUTPUTS, NUMBERS, GROUPS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES,
    )  # fmt: skip
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + output, mask=output < out_features, other=0.0)
        total += bias.to(tl.float32)[None, :]
    mask = (row < rows)[:, None] & (output < out_features)[None, :]
    target = out_ptr + row[:, None] * out_features + output[None, :]
    tl.store(target, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "splits"])
def _multiplied(
    states_ptr, data_ptr, bias_ptr, out_ptr, partial_ptr, counters_ptr,
    rows, out_features, in_features, row_bytes, splits,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """A tile of y by tensor cores, transposed: the weight's rows are the many that they want."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    start = data_ptr + tl.minimum(output, out_features - 1).to(tl.int64) * row_bytes
    num_groups = in_features // GROUP_LEN
    span = tl.cdiv(tl.cdiv(num_groups, splits), GROUPS) * GROUPS
    first = split * span
    stop = tl.minimum(first + span, num_groups)
    acc = multiplied_blocks(
        states_ptr + row.to(tl.int64) * in_features, row < rows, start, first, stop, in_features,
        ROWS, OUTPUTS, NUMBERS, GROUPS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES, PRODUCT,
    )  # fmt: skip
    is_last = splits == 1
    if splits > 1:
        acc, is_last = add_parts(acc, partial_ptr, counters_ptr, split, splits, OUTPUTS, ROWS)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + output, mask=output < out_features, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    target = out_ptr + row.to(tl.int64)[None, :] * out_features + output[:, None]
    mask = (output < tl.where(is_last, out_features, 0))[:, None] & (row < rows)[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=mask)
