"""The causal convolution of channels over the last inputs, which lie in pages of states.

A program computes some tokens of one row for a stretch of neighbouring channels. The one with the
row's first tokens alone reads the last inputs before the step, and puts the new last ones there.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.rows import row_stride
from daemon.engine.cuda.triton.state_rows import DeviceStateRows, place_of, row_of
from daemon.engine.cuda.triton.tiles import power_of_2

CHANNELS_AT_ONCE = 256
"""Most channels of one program."""
_TOKENS = 16


def convolve(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    stretches: torch.Tensor,
    rows: DeviceStateRows,
    stored: torch.dtype,
) -> torch.Tensor:
    """`inputs` [T, C] convolved by `weight` [C, K], dense, then silu where `activated`, as
    `inputs`; tokens of no row are not written. Rows of inputs may lie apart.

    `stretches` int64 [S, 5]: first channel, number of channels, at most `CHANNELS_AT_ONCE`, page,
    offset and a token's length in numbers of the type `stored` in which last inputs are kept.
    """
    width, taps = weight.shape
    out = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    pool = rows.numbers(stored)
    tokens = max(_TOKENS, taps - 1)
    if len(rows) and len(inputs):
        _convolve[(len(stretches), len(rows), -(-rows.most // tokens))](
            inputs, weight, weight if bias is None else bias, out, pool, stretches, *rows.columns,
            row_stride(inputs), NUM_PAGES=rows.pages.shape[1], PAGE=pool.shape[1],
            WIDTH=width, LANES=CHANNELS_AT_ONCE, TAPS=taps, KEPT=power_of_2(taps - 1),
            TOKENS=tokens, BIAS=bias is not None, ACTIVATED=activated, num_warps=2, num_stages=1,
        )  # fmt: skip
    return out


@triton.jit
def _convolve(
    inputs_ptr, weight_ptr, bias_ptr, out_ptr, pool_ptr, stretches_ptr, pages_ptr, starts_ptr,
    firsts_ptr, counts_ptr,
    inputs_stride, NUM_PAGES: tl.constexpr, PAGE: tl.constexpr, WIDTH: tl.constexpr,
    LANES: tl.constexpr, TAPS: tl.constexpr, KEPT: tl.constexpr, TOKENS: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATED: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one row for the channels of one stretch."""
    row, begin = tl.program_id(1).to(tl.int64), tl.program_id(2) * TOKENS
    first, count, start = row_of(row, starts_ptr, firsts_ptr, counts_ptr)
    if begin >= count:
        return
    stretches_ptr += 5 * tl.program_id(0)
    lane = tl.arange(0, LANES)
    there = lane < tl.load(stretches_ptr + 1)
    channel, length = tl.load(stretches_ptr) + lane, tl.load(stretches_ptr + 4)
    state_ptr = pool_ptr + place_of(row, stretches_ptr + 2, pages_ptr, NUM_PAGES, PAGE) + lane
    inputs_ptr += first * inputs_stride + channel
    for token in range(begin, tl.minimum(begin + TOKENS, count)):
        total = tl.zeros([LANES], tl.float32)
        if BIAS:
            total += tl.load(bias_ptr + channel, mask=there, other=0.0).to(tl.float32)
        for tap in tl.static_range(TAPS):
            # A tensor: what Triton interprets counts its loops in Python's own numbers.
            place = tl.zeros([LANES], tl.int32) + (token + tap - (TAPS - 1))
            own = there & (place >= 0)
            given = tl.load(inputs_ptr + place * inputs_stride, mask=own, other=0.0)
            before = there & (place < 0) & (place >= -start)
            kept = tl.load(state_ptr + (place + TAPS - 1) * length, mask=before, other=0.0)
            weight = tl.load(weight_ptr + channel * TAPS + tap, mask=there, other=0.0)
            total += weight.to(tl.float32) * (given.to(tl.float32) + kept.to(tl.float32))
        if ACTIVATED:
            total *= tl.sigmoid(total)
        out = total.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + (first + token) * WIDTH + channel, out, mask=there)
    if begin == 0:
        tap = tl.arange(0, KEPT)[:, None]
        place, is_kept = count - (TAPS - 1) + tap, (tap < TAPS - 1) & there[None, :]
        own = is_kept & (place >= 0)
        before = is_kept & (place < 0) & (place >= -start)
        given = tl.load(inputs_ptr[None, :] + place * inputs_stride, mask=own, other=0.0)
        kept = tl.load(state_ptr[None, :] + (place + TAPS - 1) * length, mask=before, other=0.0)
        last = tl.where(own, given.to(kept.dtype), kept)
        tl.debug_barrier()  # other threads may still read what is written now
        tl.store(state_ptr[None, :] + tap * length, last, mask=is_kept)
