"""Grouped products of a mixture's experts: y[p] = x[p] W[e]^T + bias[e], for all pairs (p, e).

Pairs come by tiles of one expert each (`expert_tiles`). A pair's row of x is that of its token, or
its own; its row of y is its own, so nothing is put back in order afterwards. Weights are read in
their blocks, at an address for each expert. Sums are float32 and rounded once. The same arguments
give the same bits every time.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.block_products import (
    TENSOR_ROWS,
    BlockTile,
    multiplied_blocks,
    summed_blocks,
)
from daemon.engine.cuda.triton.blocks import BlockKind
from daemon.engine.cuda.triton.expert_tiles import TILE_ROWS, ExpertTiles
from daemon.engine.cuda.triton.skinny import product_type
from daemon.models.formats import WeightFormat

_SUMMED = BlockTile(rows=1, outputs=4, columns=512, warps=4)
_MULTIPLIED = {rows: BlockTile(rows, outputs=64, columns=128, warps=4) for rows in TILE_ROWS}


@dataclass(frozen=True, slots=True)
class BlockStack:
    """The same weight of every expert, of one format and size, each where it lies."""

    form: WeightFormat
    addresses: torch.Tensor  # int64 [experts], of uint8 [rows, bytes of a row] each, dense
    rows: int
    columns: int


def grouped_product(
    stack: BlockStack,
    states: torch.Tensor,
    tiles: ExpertTiles,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """`out` [pairs, rows of the weight], whose rows may lie apart, of `states` [T, columns], dense:
    k pairs for each row, or one. `bias` [experts, rows of the weight], whose rows may lie apart.
    """
    if not tiles.num_pairs:
        return out
    is_few = tiles.rows < TENSOR_ROWS
    tile = _SUMMED if is_few else _MULTIPLIED[tiles.rows]
    constants = BlockKind.of(stack.form).constants(tile.columns)
    constants |= {"ROWS": tile.rows, "OUTPUTS": tile.outputs}
    if not is_few:
        constants |= {"PRODUCT": product_type(states.dtype), "num_stages": 2}
    kernel: Any = _summed if is_few else _multiplied
    kernel[(tiles.num_tiles, -(-stack.rows // tile.outputs))](
        states, stack.addresses, bias, out, tiles.pairs, tiles.experts,
        tiles.num_pairs, tiles.num_pairs // len(states), stack.rows, stack.columns,
        stack.form.row_bytes(stack.columns), out.stride(0), 0 if bias is None else bias.stride(0),
        **constants, num_warps=tile.warps,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_pairs", "pairs_of_row"])
def _summed(
    states_ptr, addresses_ptr, bias_ptr, out_ptr, pairs_ptr, experts_ptr,
    num_pairs, pairs_of_row, out_features, in_features,
    row_bytes, out_stride, bias_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
):  # fmt: skip
    """A tile of y without tensor cores."""
    expert = tl.load(experts_ptr + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    pair = _pairs(pairs_ptr, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    states = states_ptr + (pair // pairs_of_row) * in_features
    start = _start(addresses_ptr, expert, output, out_features, row_bytes)
    total = summed_blocks(
        states, pair < num_pairs, start, in_features,
        ROWS, OUTPUTS, NUMBERS, GROUPS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES,
    )  # fmt: skip
    there = output < out_features
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + expert * bias_stride + output, mask=there, other=0.0)
        total += bias.to(tl.float32)[None, :]
    target = out_ptr + (pair * out_stride)[:, None] + output[None, :]
    mask = (pair < num_pairs)[:, None] & there[None, :]
    tl.store(target, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_pairs", "pairs_of_row"])
def _multiplied(
    states_ptr, addresses_ptr, bias_ptr, out_ptr, pairs_ptr, experts_ptr,
    num_pairs, pairs_of_row, out_features, in_features,
    row_bytes, out_stride, bias_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, NUMBERS: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_LEN: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    PRODUCT: tl.constexpr,
):  # fmt: skip
    """A tile of y by tensor cores, transposed."""
    expert = tl.load(experts_ptr + tl.program_id(0)).to(tl.int64)
    if expert < 0:
        return
    pair = _pairs(pairs_ptr, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    states = states_ptr + (pair // pairs_of_row) * in_features
    start = _start(addresses_ptr, expert, output, out_features, row_bytes)
    acc = multiplied_blocks(
        states, pair < num_pairs, start, 0, in_features // GROUP_LEN, in_features,
        ROWS, OUTPUTS, NUMBERS, GROUPS, GROUP_LEN, BLOCK_GROUPS, BLOCK_BYTES, PRODUCT,
    )  # fmt: skip
    there = output < out_features
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + expert * bias_stride + output, mask=there, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    target = out_ptr + (pair * out_stride)[None, :] + output[:, None]
    mask = there[:, None] & (pair < num_pairs)[None, :]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _pairs(pairs_ptr, ROWS: tl.constexpr):
    """The pairs int64 [ROWS] of a program's tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if pairs_ptr is not None:
        row = tl.load(pairs_ptr + row)
    return row.to(tl.int64)


@triton.jit
def _start(addresses_ptr, expert, output, out_features, row_bytes):
    """Pointers to rows of an expert's weight; what lies beyond the last repeats it."""
    row = tl.minimum(output, out_features - 1).to(tl.int64) * row_bytes
    return tl.load(addresses_ptr + expert).to(tl.pointer_type(tl.uint8)) + row
