"""Blocks nearest to numbers: bit for bit as plain torch rounds one group after the other."""

import struct

import pytest
import torch

from daemon.engine.quantised.nearest import nearest_blocks
from daemon.engine.quantised.unpack import unpack
from daemon.models.formats import FORMATS, GROUP_SIZES

KINDS = ("int4", "int8", "fp8")


def plain_block(kind: str, group: torch.Tensor) -> bytes:
    """A group's block, by the words of docs/models.md."""
    low, high = group.min(), group.max()
    if kind == "fp8":
        scale, zero = group.abs().max() / 448, torch.tensor(0.0)
        codes = (group / scale).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    else:
        scale = (high - low) / (15 if kind == "int4" else 255)
        zero = -low / scale
        codes = [int(one) for one in torch.round((group - low) / scale)]
    if kind == "int4":
        half = len(codes) // 2
        pairs = zip(codes[:half], codes[half:], strict=True)
        codes = [first + 16 * second for first, second in pairs]
    return struct.pack("<ff", scale, zero) + bytes(codes)


def rows_of(count: int, columns: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(columns)
    sizes = torch.logspace(-6, 2, count).unsqueeze(1)
    return torch.randn(count, columns, generator=chance) * sizes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_block_is_that_of_plain_torch(kind: str, size: int, dtype: torch.dtype) -> None:
    rows = rows_of(9, 3 * size).to(dtype).float()
    made = nearest_blocks(FORMATS[f"{kind}/{size}"], rows)
    expected = b"".join(plain_block(kind, group) for row in rows for group in row.split(size))
    assert made.numpy().tobytes() == expected


@pytest.mark.parametrize(("kind", "steps"), [("int4", 15), ("int8", 255)])
def test_integers_lose_half_a_step_at_most(kind: str, steps: int) -> None:
    form, rows = FORMATS[f"{kind}/32"], rows_of(16, 64)
    lost = (unpack(form, nearest_blocks(form, rows)) - rows).abs().unflatten(1, (-1, 32))
    groups = rows.unflatten(1, (-1, 32))
    step = (groups.amax(2) - groups.amin(2)) / steps
    assert bool((lost.amax(2) <= 0.5001 * step).all())


def test_fp8_loses_a_sixteenth_of_each_number_at_most() -> None:
    form, rows = FORMATS["fp8/32"], rows_of(16, 64)
    lost = (unpack(form, nearest_blocks(form, rows)) - rows).abs()
    least = rows.unflatten(1, (-1, 32)).abs().amax(2) / 448 * 2**-10  # half of a subnormal step
    assert bool((lost <= rows.abs() / 16 * 1.0001 + least.repeat_interleave(32, 1) * 1.0001).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.25, -3.0, 1e-30])
def test_numbers_that_are_all_alike_stay_what_they_are(kind: str, value: float) -> None:
    form, rows = FORMATS[f"{kind}/32"], torch.full((2, 32), value)
    torch.testing.assert_close(unpack(form, nearest_blocks(form, rows)), rows, atol=0, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_below_all_scales_are_nearly_nothing(kind: str) -> None:
    form = FORMATS[f"{kind}/32"]
    rows = torch.linspace(-1e-39, 1e-39, 32).unsqueeze(0)
    lost = unpack(form, nearest_blocks(form, rows)) - rows
    assert bool(lost.isfinite().all()) and float(lost.abs().max()) < 1e-37
