"""Packing of blocks against its torch reference, and swap copies beside steps of a device."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.kv import host_int8 as packing
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.link import SwapLink, swap_link
from daemon.state.batch import Batch
from daemon.wire.columns import int32
from tests.gpu.attempts import attempted

LAYERS, NUM_BLOCKS = 2, 7
HALF_STEP = 0.505
"""The error of eq. 8, in scales; the rest is rounding of float32."""
ONE_FLOAT16 = 2.0**-10
ROUNDING = {torch.float32: 1e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
SHAPES = ((3, 64, 16), (2, 80, 32), (1, 16, 8), (9, 128, 16), (1, 256, 256))
"""(KV heads, head_dim, block size)."""


def packing_checks(
    device: str, dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
) -> Iterator[Check]:
    """Blocks full and part full, over rubbish, far from 0 and constant."""
    for dtype in dtypes:
        for kv_heads, head_dim, block_size in SHAPES:
            name = f"{kv_heads}x{head_dim} block {block_size} {str(dtype).removeprefix('torch.')}"
            case = _case(dtype, (kv_heads, head_dim, block_size), device)
            yield from _pack_checks(name, *case)


def _case(
    dtype: torch.dtype, sizes: tuple[int, int, int], device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pool, an index of four of its blocks, and their fills; unwritten numbers are huge."""
    kv_heads, head_dim, block_size = sizes
    chance = torch.Generator().manual_seed(3)
    shape = (NUM_BLOCKS, LAYERS, 2, block_size, kv_heads, head_dim)
    pool = torch.randn(shape, generator=chance)
    pool[..., 0] += 50.0  # a channel far from 0, as keys have them
    pool[..., 1] = 3.0
    pool[..., 2] = 0.0
    index, fills = torch.tensor([5, 0, 6, 2]), torch.tensor([block_size, 1, block_size - 1, 3])
    for block, fill in zip(index.tolist(), fills.tolist(), strict=True):
        pool[block, :, :, fill:] = 3e4
    return pool.to(dtype).to(device), index.to(device), fills.to(device)


def _pack_checks(
    name: str, pool: torch.Tensor, index: torch.Tensor, fills: torch.Tensor
) -> Iterator[Check]:
    shape = (len(index), packing.packed_bytes(pool.shape))
    ours = torch.full(shape, 255, dtype=torch.uint8, device=pool.device)
    theirs = torch.zeros(shape, dtype=torch.uint8, device=pool.device)
    kernels.pack_blocks(pool, index, fills, ours)
    packing.pack_blocks(pool, index, fills, theirs)
    yield Check(f"pack_blocks   {name}", steps_wrong(pool[index], fills, ours), HALF_STEP)
    apart = max(
        float(((one.float() - other.float()).abs() / other.float().abs()).max())
        for one, other in zip(
            packing.parts(ours, pool.shape)[1:], packing.parts(theirs, pool.shape)[1:], strict=True
        )
    )
    yield Check(f"pack_blocks   {name}, scales", apart, ONE_FLOAT16)
    pools = [torch.zeros_like(pool) for _ in range(2)]
    kernels.unpack_blocks(ours, pools[0], index)
    packing.unpack_blocks(ours, pools[1], index)
    one, other = (pool.float() for pool in pools)
    error = float(((one - other).abs() / other.abs().clamp(min=1.0)).max())
    yield Check(f"unpack_blocks {name}", error, ROUNDING[pool.dtype])


def steps_wrong(blocks: torch.Tensor, fills: torch.Tensor, packed: torch.Tensor) -> float:
    """The largest error of what was written, in scales of its channel; NaN where a scale is."""
    quanta, scales, zeros = packing.parts(packed, blocks.shape)
    scales = scales.double().unsqueeze(3)
    values = quanta.double() * scales + zeros.double().unsqueeze(3)
    wrong = ((values - blocks.double()).abs() / scales).movedim(3, 1)
    written = torch.arange(wrong.shape[1], device=fills.device) < fills.unsqueeze(1)
    return float(wrong[written].max())


KINDS = (("plain", False, None), ("int8", True, None), ("of an 8-bit cache", False, torch.int8))
"""The kinds of blocks: whether they are packed on their way, and the cache's format."""


def swap_checks(device: str) -> Iterator[Check]:
    """Round trips, and the order of copies and steps, with a device that has much to do."""
    for name, compress, kv_dtype in KINDS:
        link = partial(_link, device, compress, kv_dtype)
        limit = HALF_STEP if compress else 0
        yield from attempted(
            f"swap {name}",
            lambda link=link, name=name, limit=limit: (
                Check(f"swap {name} round trip", _round_trip(link()), limit),
                Check(f"swap {name} waits for earlier steps", _late_write(link()), 0),
                Check(f"swap {name} is awaited by later steps", _early_read(link()), 0),
            ),
        )


def _link(device: str, compress: bool, kv_dtype: torch.dtype | None) -> SwapLink:
    """A pool of 96 blocks of half a megabyte, its first 64 at random, and a host pool."""
    cache = PagedKV(96, 8, 16, 8, 128, torch.bfloat16, torch.device(device), kv_dtype)
    if kv_dtype is None:
        cache.blocks[:64] = torch.randn(cache.blocks[:64].shape, device=device).bfloat16()
    else:
        cache.raw[:64] = torch.randint(0, 256, cache.raw[:64].shape, device=device)
    link = swap_link(cache, 64, compress)
    assert link is not None
    return link


def _round_trip(link: SwapLink) -> float:
    """Bytes that differ, or the error in scales of equation 8 where blocks are packed."""
    cache = link.cache
    before, original = cache.raw.clone(), cache.blocks.clone()
    away = np.random.default_rng(0).permutation(64)[:40].astype(np.int32)
    index = torch.from_numpy(away).long().to(cache.raw.device)
    places = int32(range(10, 50))
    _keep_busy(cache.raw.device)
    link.order(plan(1, outs=(away, places)))
    link.wait(1)
    cache.raw[index] = 0x5A
    link.order(plan(2, ins=(places, int32(range(56, 96)))))
    link.wait(2)
    moved, came = cache.raw[56:].clone(), cache.blocks[56:].float()
    link.close()
    if not link.pool.compressed:
        return int((moved != before[index]).sum())
    return steps_away(original[index].float(), came)


def steps_away(original: torch.Tensor, came: torch.Tensor) -> float:
    """The largest error of full blocks that were packed, in scales of their channels."""
    scale = (original.amax(3) - original.amin(3)).unsqueeze(3) / packing.NUM_STEPS
    scale = scale * (1 + 4 * packing.WIDEN) + 2 * packing.TINY
    rounding = original.abs() * ROUNDING[torch.bfloat16]
    return float((((came - original).abs() - rounding) / scale).max())


def _late_write(link: SwapLink) -> int:
    """A step that is still computing when the plan comes writes what goes out."""
    cache = link.cache
    _keep_busy(cache.raw.device)
    _write(cache, slice(3, 4))
    link.order(plan(1, outs=(int32([3]), int32([0]))))
    link.order(plan(2, ins=(int32([0]), int32([70]))))
    link.close()
    return _not_written(cache, slice(70, 71))


def _early_read(link: SwapLink) -> int:
    """A step reads blocks whose way back has only just been ordered."""
    cache = link.cache
    _write(cache, slice(0, 64))
    link.order(plan(1, outs=(int32(range(64)), int32(range(64)))))
    link.order(plan(2, ins=(int32(range(32)), int32(range(64, 96)))))
    link.wait(2)
    wrong = _not_written(cache, slice(64, 96))
    link.close()
    return wrong


def _write(cache: PagedKV, blocks: slice) -> None:
    """One number everywhere in these blocks."""
    cache.blocks[blocks] = 7.0
    if cache.scales is not None:
        cache.scales[blocks] = 2.0


def _not_written(cache: PagedKV, blocks: slice) -> int:
    """How many numbers of these blocks are others."""
    wrong = int((cache.blocks[blocks] != 7.0).sum())
    return wrong if cache.scales is None else wrong + int((cache.scales[blocks] != 2.0).sum())


def _keep_busy(device: torch.device) -> None:
    """Work of some tens of milliseconds for a large GPU; nothing waits for it."""
    size = 4096 if device.type == "cuda" else 64
    square = torch.randn(size, size, device=device)
    for _ in range(20):
        square = (square @ square).clamp(-1.0, 1.0)


Pairs = tuple[np.ndarray, np.ndarray]


def plan(step: int, outs: Pairs | None = None, ins: Pairs | None = None) -> Batch:
    """A plan without rows; `outs` (blocks, places), `ins` (places, blocks)."""
    none = int32()
    bytes_ = none.astype(np.uint8)
    rows = (none, none, none, bytes_, bytes_)
    changes = (none,) * 7
    swaps = (*(outs or (none, none)), *(ins or (none, none)))
    return Batch(0, step, *rows, *changes, none.astype(np.int64), *swaps)
