"""The clamped gate between the grouped products of experts, and the sum for each token."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.activation import pieces_of


def clamped_mul(states: torch.Tensor, limit: float, alpha: float, in_turns: bool) -> torch.Tensor:
    """gpt-oss's gate (see `ClampedGate`) of `states` [P, 2 * W], dense: gates first, or `in_turns`
    with what they gate; in float32, rounded once; [P, W].
    """
    rows, width = states.shape[0], states.shape[1] // 2
    out = states.new_empty(rows, width)
    if rows:
        cells, pieces = pieces_of(width)
        _clamped[(rows * pieces,)](
            states, out, limit, alpha, WIDTH=width, PIECES=pieces, CELLS=cells, IN_TURNS=in_turns,
            num_warps=4,
        )  # fmt: skip
    return out


def summed_shares(made: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """[T, W]: what a token's k experts made, `made` [T * k, W], added up by their `shares` [T, k]
    in float32 and rounded once; both are dense.
    """
    (tokens, chosen), width = shares.shape, made.shape[1]
    out = made.new_empty(tokens, width)
    if tokens:
        cells, pieces = pieces_of(width)
        _added[(tokens * pieces,)](
            made, shares, out, CHOSEN=chosen, WIDTH=width, PIECES=pieces, CELLS=cells, num_warps=4
        )
    return out


@triton.jit(do_not_specialize=["limit", "alpha"])
def _clamped(
    states_ptr, out_ptr, limit, alpha,
    WIDTH: tl.constexpr, PIECES: tl.constexpr, CELLS: tl.constexpr, IN_TURNS: tl.constexpr,
):  # fmt: skip
    """A piece of one row."""
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    cell = tl.program_id(0) % PIECES * CELLS + tl.arange(0, CELLS)
    mask = cell < WIDTH
    source = states_ptr + row * (2 * WIDTH) + (2 * cell if IN_TURNS else cell)
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + (1 if IN_TURNS else WIDTH), mask=mask, other=0.0).to(tl.float32)
    # Comparisons, since a minimum drops what is no number.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    product = gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)
    tl.store(out_ptr + row * WIDTH + cell, product.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _added(
    made_ptr, shares_ptr, out_ptr,
    CHOSEN: tl.constexpr, WIDTH: tl.constexpr, PIECES: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """A piece of one token."""
    token = (tl.program_id(0) // PIECES).to(tl.int64)
    cell = tl.program_id(0) % PIECES * CELLS + tl.arange(0, CELLS)
    mask = cell < WIDTH
    total = tl.zeros([CELLS], tl.float32)
    for place in tl.static_range(CHOSEN):
        share = tl.load(shares_ptr + token * CHOSEN + place).to(tl.float32)
        source = made_ptr + (token * CHOSEN + place) * WIDTH + cell
        total += tl.load(source, mask=mask, other=0.0).to(tl.float32) * share
    tl.store(out_ptr + token * WIDTH + cell, total.to(out_ptr.dtype.element_ty), mask=mask)
