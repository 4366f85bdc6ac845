"""Blocks nearest to numbers: those of 8 bits bit for bit as plain torch rounds one group after the
other, and those of 4 bits with a small squared error.
"""

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
        scale = (high - low) / 255
        zero = -low / scale
        codes = [int(one) for one in torch.round((group - low) / scale)]
    return struct.pack("<ff", scale, zero) + bytes(codes)


def rows_of(count: int, columns: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(columns)
    sizes = torch.logspace(-6, 2, count).unsqueeze(1)
    return torch.randn(count, columns, generator=chance) * sizes


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_block_is_that_of_plain_torch(kind: str, size: int, dtype: torch.dtype) -> None:
    rows = rows_of(9, 3 * size).to(dtype).float()
    made = nearest_blocks(FORMATS[f"{kind}/{size}"], rows)
    expected = b"".join(plain_block(kind, group) for row in rows for group in row.split(size))
    assert made.numpy().tobytes() == expected


def test_integers_of_8_bits_lose_half_a_step_at_most() -> None:
    form, rows = FORMATS["int8/32"], rows_of(16, 64)
    lost = (unpack(form, nearest_blocks(form, rows)) - rows).abs().unflatten(1, (-1, 32))
    groups = rows.unflatten(1, (-1, 32))
    step = (groups.amax(2) - groups.amin(2)) / 255
    assert bool((lost.amax(2) <= 0.5001 * step).all())


def errors(size: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, groups]: squared errors of 4 bits, and of 16 even steps from least to greatest."""
    form = FORMATS[f"int4/{size}"]
    groups = rows.unflatten(1, (-1, size))
    low, high = groups.aminmax(dim=2, keepdim=True)
    scale = (high - low) / 15
    even = ((groups - low) / scale).round() * scale + low
    found = unpack(form, nearest_blocks(form, rows)).unflatten(1, (-1, size))
    return ((found - groups) ** 2).sum(2), ((even - groups) ** 2).sum(2)


@pytest.mark.parametrize("size", GROUP_SIZES)
def test_integers_of_4_bits_lose_less_than_even_steps_over_the_whole_range(size: int) -> None:
    found, even = errors(size, rows_of(37, 3 * size))
    assert bool((found <= 1.0001 * even).all())
    assert float((found / even).mean()) < 0.9


def test_integers_of_4_bits_are_those_of_a_group_alone() -> None:
    form, rows = FORMATS["int4/32"], rows_of(21, 96)
    alone = [nearest_blocks(form, one.view(1, 32)) for one in rows.view(-1, 32)]
    assert torch.equal(torch.cat(alone).view(21, -1), nearest_blocks(form, rows))


def test_numbers_of_sixteen_even_values_stay_what_they_are() -> None:
    chance = torch.Generator().manual_seed(3)
    codes = torch.randint(16, (40, 64), generator=chance)
    codes[:, :2] = torch.tensor([0, 15])
    rows = codes * torch.logspace(-6, 2, 40).unsqueeze(1) - 0.5
    form = FORMATS["int4/64"]
    torch.testing.assert_close(unpack(form, nearest_blocks(form, rows)), rows, rtol=1e-5, atol=1e-6)


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
