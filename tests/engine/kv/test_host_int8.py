"""Blocks as 8-bit integers: ALISE's equation 8, its bound, and what it does to attention."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.cuda.triton.reference import attend
from daemon.engine.kv.host_int8 import NUM_STEPS, pack_blocks, packed_bytes, parts, unpack_blocks

SHAPE = (5, 2, 2, 8, 2, 4)


def there_and_back(
    pool: torch.Tensor, index: list[int], fills: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks at `index` after a round trip through other blocks, and their scales."""
    packed = torch.zeros(len(index), packed_bytes(pool.shape), dtype=torch.uint8)
    pack_blocks(pool, torch.tensor(index), torch.tensor(fills), packed)
    target = torch.full_like(pool, torch.nan)
    unpack_blocks(packed, target, torch.tensor(index))
    return target[index], parts(packed, pool.shape).scales.double().unsqueeze(3)


def equation_8(written: torch.Tensor) -> torch.Tensor:
    """Its scale of each channel, of what was written [..., token, kv_head, head_dim]."""
    span = written.double().amax(-3) - written.double().amin(-3)
    return (span / NUM_STEPS).unsqueeze(-3)


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(1e-6, 1e4),
    centre=st.floats(-2e4, 2e4),
    fill=st.integers(1, 8),
)
def test_the_error_is_half_a_scale_and_the_scale_is_equation_8_s(
    seed: int, spread: float, centre: float, fill: int
) -> None:
    chance = torch.Generator().manual_seed(seed)
    pool = torch.randn(SHAPE, generator=chance) * spread + centre
    back, scales = there_and_back(pool, [3], [fill])
    before, after = pool[[3], :, :, :fill].double(), back[:, :, :, :fill].double()
    float32 = 2.0**-21 * before.abs()
    assert ((after - before).abs() <= 0.5 * scales + float32).all()
    exact = equation_8(pool[[3], :, :, :fill])
    # Rounding both to float16, outwards: a thousandth of the scale, and of how far off 0 it is.
    widest = exact * 1.002 + before.abs().amax(3, keepdim=True) * 0.002 / NUM_STEPS + 2.0**-23
    assert (scales <= widest).all()


def test_what_lies_beyond_the_written_tokens_does_not_count() -> None:
    pool = torch.randn(SHAPE)
    clean, _ = there_and_back(pool, [0, 4], [3, 8])
    pool[0, :, :, 3:] = -3e4
    rubbish, scales = there_and_back(pool, [0, 4], [3, 8])
    assert torch.equal(rubbish[0, :, :, :3], clean[0, :, :, :3])
    assert torch.equal(rubbish[1], clean[1])
    assert rubbish.isfinite().all() and rubbish.abs().max() < 10, "cut to the range"
    assert (scales < 0.05).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -3.75, 6e-8, 65504.0, -65504.0])
def test_a_constant_channel_keeps_its_value(value: float) -> None:
    pool = torch.full(SHAPE, value)
    back, _ = there_and_back(pool, [1], [8])
    assert torch.allclose(back, pool[[1]], rtol=1e-5, atol=1e-7)


def test_numbers_that_float16_cannot_hold_stay_finite() -> None:
    pool = torch.randn(SHAPE) * 1e6
    back, _ = there_and_back(pool, [0], [8])
    assert back.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_err_by_their_own_rounding_beside(dtype: torch.dtype) -> None:
    pool = (torch.randn(SHAPE) * 4).to(dtype)
    back, scales = there_and_back(pool, [2, 0], [8, 8])
    assert back.dtype == dtype
    wrong = (back.double() - pool[[2, 0]].double()).abs()
    rounding = torch.finfo(dtype).eps / 2 * pool[[2, 0]].double().abs() * 1.01
    assert (wrong <= 0.501 * scales + rounding).all()


def test_a_block_takes_a_byte_an_element_and_four_a_channel() -> None:
    layers, pair, block_size, kv_heads, head_dim = SHAPE[1:]
    channels = layers * pair * kv_heads * head_dim
    assert packed_bytes(SHAPE) == channels * block_size + 4 * channels
    packed = torch.arange(packed_bytes(SHAPE) * 2).to(torch.uint8).view(2, -1)
    quanta, scales, zeros = parts(packed, SHAPE)
    raw = torch.cat([part.reshape(2, -1).view(torch.uint8) for part in (quanta, scales, zeros)], 1)
    assert torch.equal(raw, packed), "the parts are all there is, without overlap"


@pytest.mark.parametrize("peak", [1.0, 30.0])
def test_attention_hardly_notices(peak: float) -> None:
    """Keys with a few channels that are `peak` times as large as the others, as models have."""
    block_size, kv_heads, head_dim, num_blocks = 16, 2, 64, 16
    torch.manual_seed(0)
    pool = torch.randn(num_blocks, 1, 2, block_size, kv_heads, head_dim)
    pool[:, 0, 0, :, :, ::16] *= peak
    back, _ = there_and_back(pool, list(range(num_blocks)), [block_size] * num_blocks)
    query = torch.randn(4, 4, head_dim)
    before, after = (
        attend(query, *_rows(blocks), num_blocks * block_size - 4, 1 / math.sqrt(head_dim))
        for blocks in (pool, back)
    )
    error = (after - before).norm() / before.norm()
    assert error < 0.02
    # One scale for a whole head, as cheaper schemes have, loses the small channels.
    if peak > 1:
        span = pool[:, :, 0].abs().amax((2, 4), keepdim=True) / 127
        coarse = pool.clone()
        coarse[:, :, 0] = (pool[:, :, 0] / span).round() * span
        worse = attend(query, *_rows(coarse), num_blocks * block_size - 4, 1 / math.sqrt(head_dim))
        assert (worse - before).norm() / before.norm() > 2 * error


def _rows(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [token, kv_head, head_dim] of a one-layer pool in order."""
    keys, values = blocks[:, 0].transpose(0, 1).flatten(1, 2)
    return keys, values
