"""Rows of numbers as 8-bit ones with a scale each, as `daemon.engine.kv.eight_bit` defines it."""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

import torch
import triton
import triton.language as tl

from daemon.engine.kv.eight_bit import FP8, INT8, LARGEST, SMALLEST_SCALE

PLAIN_KIND, INT8_KIND, FP8_KIND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

_INT8_LARGEST, _FP8_LARGEST = tl.constexpr(LARGEST[INT8]), tl.constexpr(LARGEST[FP8])
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)
_ROUNDING = tl.constexpr(1.5 * 2.0**23)
"""Added and taken away again, it rounds a small float32 to an integer, halves to even."""


def kind_of(dtype: torch.dtype) -> int:
    """The kernels' KIND for a cache that stores this type: 1 int8, 2 fp8, 0 the states' own."""
    return {INT8: 1, FP8: 2}.get(dtype, 0)


@triton.jit
def quantised(values, KIND: tl.constexpr):
    """float32 [ROWS, DIM], padded with 0, to (what is stored [ROWS, DIM], scale float32 [ROWS]).

    KIND 0 gives `values` back, with scales of 1.
    """
    if KIND == PLAIN_KIND:
        stored, scale = values, tl.full([values.shape[0]], 1.0, tl.float32)
    else:
        most: tl.constexpr = _INT8_LARGEST if KIND == INT8_KIND else _FP8_LARGEST
        # Exact divisions: the plain ones of a GPU err by two units in the last place.
        largest = tl.max(tl.abs(values), 1)
        scale = tl.div_rn(largest, tl.full(largest.shape, most, tl.float32))
        # With 0, or NaN where a value is not finite: max alone would pass over a NaN.
        scale = tl.maximum(scale, _SMALLEST_SCALE) + tl.sum(values - values, 1)
        ratio = tl.div_rn(values, tl.broadcast_to(scale[:, None], values.shape))
        if KIND == INT8_KIND:
            stored = ((ratio + _ROUNDING) - _ROUNDING).to(tl.int8)
        else:
            stored = ratio.to(tl.float8e4nv)
    return stored, scale
