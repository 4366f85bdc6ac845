"""The small fused kernels against their torch references, on a GPU or through the interpreter."""

from collections.abc import Iterator
from functools import partial

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from tests.gpu.attempts import attempted, failed
from tests.gpu.kernel_shapes import BF16, FP16, FP32
from tests.gpu.modelling_checks import modelling_checks
from tests.gpu.place_checks import place_checks
from tests.gpu.poison import apart, error, limit, untouched

WIDTHS = (8, 100, 576, 4096, 5120, 16_384)
"""Widths of rows: one load of a thread, no multiple of it, and those of models up to the widest."""
DTYPES = (FP32, FP16, BF16)
EPSILON = 1e-5


def op_checks(device: str) -> Iterator[Check]:
    """All small kernels; on a GPU also large ones, graphs, and what compiles anew."""
    large = device.startswith("cuda")
    for dtype in DTYPES:
        # Fewer in float16, which differs from bfloat16 in its rounding alone.
        for width in (100, 4096) if dtype == FP16 else WIDTHS:
            rows = 3 if width < 4096 else 2
            yield from _row_checks(rows, width, dtype, device)
        if large:
            yield from _row_checks(1031, 4096, dtype, device)
    if large:
        yield from _row_checks(70_000, 576, BF16, device)
    yield from place_checks(device)
    yield from modelling_checks(device)
    if large:
        from tests.gpu.op_gpu_checks import op_gpu_checks

        yield from op_gpu_checks(device)


def _row_checks(rows: int, width: int, dtype: torch.dtype, device: str) -> Iterator[Check]:
    name = f"{rows} x {width} {str(dtype).removeprefix('torch.')}"
    for added in (False, True):
        kind = "add_norm" if added else "norm"
        work = partial(_norm_checks, f"{kind} {name}", rows, width, dtype, device, added)
        yield from attempted(f"{kind} {name}", work)
    yield from attempted(
        f"silu_mul {name}", partial(_silu_checks, f"silu_mul {name}", rows, width, dtype, device)
    )


def _norm_checks(
    name: str, rows: int, width: int, dtype: torch.dtype, device: str, with_added: bool
) -> Iterator[Check]:
    chance = torch.Generator().manual_seed(width)
    states = apart(torch.randn(rows, width, generator=chance) * 3, dtype, device)
    added = apart(torch.randn(rows, width, generator=chance), dtype, device)
    weight = apart(torch.randn(1, width, generator=chance), dtype, device)[0]
    states[0] = 0.0  # a row that no scale can make longer
    added[0] = 0.0
    summand = added if with_added else None
    mine, out = apart(states, dtype, device), apart(torch.full_like(states, torch.nan))
    kernels.add_norm(mine, summand, weight, EPSILON, out=out)
    expected = reference.add_norm(states, summand, weight, EPSILON)
    yield Check(name, error(out, expected), limit(dtype))
    if not (untouched(mine) and untouched(out)):
        yield failed(name, "wrote behind a row")
    # The sum is torch's own, to the last bit; Triton's interpreter cuts bfloat16 off.
    if dtype != BF16 or not triton.knobs.runtime.interpret:
        yield Check(f"{name}, sum", int((mine != states).sum()), 0, "numbers")


def _silu_checks(
    name: str, rows: int, width: int, dtype: torch.dtype, device: str
) -> Iterator[Check]:
    chance = torch.Generator().manual_seed(width)
    values = torch.randn(rows, 2 * width, generator=chance) * 4
    values[0, : width // 2] *= 50  # where exp() ends
    states = apart(values, dtype, device)
    out = apart(torch.full_like(states[:, :width], torch.nan))
    kernels.silu_mul(states, out=out)
    yield Check(name, error(out, reference.silu_mul(states)), limit(dtype))
    kernels.gelu_mul(states, out=out)
    # Its power is a cube, whose rounding the exponential makes larger.
    yield Check(f"gelu of {name}", error(out, reference.gelu_mul(states)), 2 * limit(dtype))
    if not untouched(out):
        yield failed(name, "wrote behind a row")
