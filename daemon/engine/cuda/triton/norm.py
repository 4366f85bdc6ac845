"""RMS norm of rows, with the sum that stands before it in every layer of a decoder."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from daemon.engine.cuda.triton.early import early
from daemon.engine.cuda.triton.rows import row_stride

WIDEST = 16_384
_CELLS_OF_A_WARP = 512
_MOST_WARPS = 16


def add_norm(
    states: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`states` [T, W] += `added` [T, W], then their RMS norm times `weight` [W], as a new tensor.

    The sum is rounded to the type of the states, as torch would; what follows is float32 and
    rounded once. Rows may lie apart. Raises ValueError if the numbers of one do not lie together,
    or are more than `WIDEST`.
    """
    rows, width = states.shape
    if width > WIDEST:
        raise ValueError(f"a row of {width} is wider than {WIDEST}")
    out = states.new_empty(rows, width) if out is None else out
    if rows:
        tile, warps = _tile(width)
        _add_norm[(rows,)](
            states, states if added is None else added, weight, out, epsilon,
            STATES_STRIDE=row_stride(states),
            ADDED_STRIDE=0 if added is None else row_stride(added),
            OUT_STRIDE=row_stride(out),
            WIDTH=width, TILE=tile, ADDED=added is not None, EARLY=early(),
            num_warps=warps, launch_pdl=early(),
        )  # fmt: skip
    return out


@lru_cache
def _tile(width: int) -> tuple[int, int]:
    """Numbers of a tile that holds a row, and warps: 16 numbers each thread, by 16 bytes."""
    tile: int = triton.next_power_of_2(width)
    return tile, max(1, min(_MOST_WARPS, tile // _CELLS_OF_A_WARP))


@triton.jit
def _add_norm(
    states_ptr, added_ptr, norm_ptr, out_ptr, epsilon,
    STATES_STRIDE: tl.constexpr, ADDED_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ADDED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    # 64 bits: a long prompt's states are more than 2 ** 31 numbers.
    row = tl.program_id(0).to(tl.int64)
    cell = tl.arange(0, TILE)
    mask = cell < WIDTH
    # Read first, so that it does not wait for the sum over the row.
    weight = tl.load(norm_ptr + cell, mask=mask, other=0.0).to(tl.float32)
    target = states_ptr + row * STATES_STRIDE + cell
    states = tl.load(target, mask=mask, other=0.0)
    if ADDED:
        added = tl.load(added_ptr + row * ADDED_STRIDE + cell, mask=mask, other=0.0)
        states = (states.to(tl.float32) + added.to(tl.float32)).to(states.dtype)
        tl.store(target, states, mask=mask)
    values = states.to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, 0) / WIDTH + epsilon) * weight
    tl.store(out_ptr + row * OUT_STRIDE + cell, normed.to(states.dtype), mask=mask)
