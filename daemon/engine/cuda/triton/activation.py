"""The activation between a gated MLP's products."""

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

_MOST_CELLS = 2048


def silu_mul(states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """silu(gate) * up of `states` [T, 2 * W], gates first; in float32, rounded once; [T, W].

    Rows may lie apart. Raises ValueError if the numbers of one do not lie together.
    """
    return _gated(states, out, False)


def gelu_mul(states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """gelu(gate) * up as `silu_mul` has it; gelu as approximated by tanh."""
    return _gated(states, out, True)


def _gated(states: torch.Tensor, out: torch.Tensor | None, gelu: bool) -> torch.Tensor:
    rows, width = states.shape[0], states.shape[1] // 2
    out = states.new_empty(rows, width) if out is None else out
    if rows:
        cells, pieces = pieces_of(width)
        # One dimension: the second one of a grid ends at 65,535.
        _gate_mul[(rows * pieces,)](
            states, out, STATES_STRIDE=row_stride(states), OUT_STRIDE=row_stride(out),
            WIDTH=width, PIECES=pieces, CELLS=cells, GELU=gelu, EARLY=early(), num_warps=4,
            launch_pdl=early(),
        )  # fmt: skip
    return out


@lru_cache
def pieces_of(width: int) -> tuple[int, int]:
    """Numbers of a piece, and pieces of a row."""
    cells: int = min(_MOST_CELLS, triton.next_power_of_2(width))
    return cells, -(-width // cells)


@triton.jit
def _gate_mul(
    states_ptr, out_ptr,
    STATES_STRIDE: tl.constexpr, OUT_STRIDE: tl.constexpr, WIDTH: tl.constexpr,
    PIECES: tl.constexpr, CELLS: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A piece of one row."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    # 64 bits: a long prompt's states are more than 2 ** 31 numbers.
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    cell = tl.program_id(0) % PIECES * CELLS + tl.arange(0, CELLS)
    mask = cell < WIDTH
    source = states_ptr + row * STATES_STRIDE + cell
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=mask, other=0.0).to(tl.float32)
    # gelu's tanh is that of half the power here: gate * (1 + tanh(z)) / 2 = gate * sigmoid(2 z).
    power = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    product = gate / (1.0 + tl.exp(-power)) * up
    tl.store(out_ptr + row * OUT_STRIDE + cell, product.to(out_ptr.dtype.element_ty), mask=mask)
