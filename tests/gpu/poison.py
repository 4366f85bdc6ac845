"""Rows with traps behind them, and how near one way to compute must come to another."""

import torch
import triton

SPARE = 8
"""Numbers behind each row that are no one's."""
_SLACK = 2.0**-3
"""Below it, an error counts as if of a number of this size."""


def apart(
    rows: torch.Tensor, dtype: torch.dtype | None = None, device: str | None = None
) -> torch.Tensor:
    """A copy of `rows` [T, W] with NaN behind each, so that reading there shows."""
    wide = torch.full((rows.shape[0], rows.shape[1] + SPARE), torch.nan)
    wide = wide.to(device or rows.device, dtype or rows.dtype)
    wide[:, :-SPARE] = rows
    return wide[:, :-SPARE]


def untouched(rows: torch.Tensor) -> bool:
    """Whether what lies behind each row of `apart` is still NaN."""
    whole = rows.as_strided((rows.shape[0], rows.stride(0)), (rows.stride(0), 1))
    return bool(whole[:, rows.shape[1] :].isnan().all())


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference relative to the expected number; NaN where either has one."""
    size = expected.double().abs().clamp(min=_SLACK)
    return float(((got.double() - expected.double()).abs() / size).max())


def limit(dtype: torch.dtype) -> float:
    """One unit in the last place, as two ways to compute may round to either side.

    In float32 it is what exp and rsqrt of a GPU err by. Triton's interpreter cuts bfloat16 off
    where it should round, sums included.
    """
    if dtype == torch.float32:
        return 1e-5
    cut_off = dtype == torch.bfloat16 and triton.knobs.runtime.interpret
    return torch.finfo(dtype).eps * (4 if cut_off else 1)
