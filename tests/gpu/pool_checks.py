"""Writes into the KV pool, copies of its blocks, and pools that 32 bits do not address."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.eight_bit import kv_fault
from daemon.engine.kv.pool import PagedKV
from tests.gpu.attempts import attempted
from tests.gpu.kernel_checks import LIMITS, distance
from tests.gpu.kernel_shapes import BF16, FP8, FP16, FP32, INT8
from tests.gpu.paged import LAYER, LAYERS

KINDS = ((FP32, None), (FP16, None), (BF16, None), (BF16, INT8), (FP32, INT8), (BF16, FP8))
"""Types of the states, and of what is stored where that is another."""
SIZES = ((3, 64, 16), (2, 80, 32), (9, 128, 16))
"""KV heads, head_dim and block size."""
NUM_BLOCKS = 7
BLOCKS = (6, -1, 0, 3, 3, -1)
"""The blocks of six written tokens; two are dropped."""


def pool_checks(device: str) -> Iterator[Check]:
    """`write_kv` in every type, byte by byte: what is written, and that nothing else is."""
    for dtype, kv_dtype in KINDS:
        if kv_fault(kv_dtype, torch.device(device)):
            continue
        for sizes in SIZES:
            kinds = [kind for kind in (dtype, kv_dtype) if kind is not None]
            name = "/".join(str(kind).removeprefix("torch.") for kind in kinds)
            name = f"{sizes[0]}x{sizes[1]} block {sizes[2]} {name}"
            pools = partial(_pools, dtype, kv_dtype, sizes, device)
            yield from attempted(f"write_kv    {name}", partial(_write_checks, name, pools))
            yield from attempted(f"copy        {name}", partial(_copy_checks, name, pools))


def _pools(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, sizes: tuple[int, int, int], device: str
) -> tuple[PagedKV, PagedKV]:
    """Two pools of the same random bytes, the second one on the CPU.

    There torch divides exactly: on a GPU it multiplies by the reciprocal of a constant.
    """
    kv_heads, head_dim, block_size = sizes
    shape = (NUM_BLOCKS, LAYERS, block_size, kv_heads, head_dim, dtype)
    ours, theirs = (PagedKV(*shape, torch.device(place), kv_dtype) for place in (device, "cpu"))
    chance = torch.Generator().manual_seed(1)
    theirs.raw.copy_(torch.randint(0, 256, theirs.raw.shape, generator=chance, dtype=torch.uint8))
    ours.raw.copy_(theirs.raw)
    return ours, theirs


def _write_checks(name: str, pools: partial[tuple[PagedKV, PagedKV]]) -> Iterator[Check]:
    ours, theirs = pools()
    block_size, kv_heads, head_dim = ours.blocks.shape[3:]
    wide = _states(2 * kv_heads + 1, head_dim, ours.blocks.dtype).to(ours.dtype)
    offsets = (0, 5, block_size - 1, 1, 2, 0)
    for pool, write in ((ours, kernels.write_kv), (theirs, reference.write_kv)):
        there = wide.to(pool.raw.device)
        pair = there[:, :kv_heads], there[:, kv_heads : 2 * kv_heads]
        slots = [torch.tensor(c, dtype=torch.int32).to(there.device) for c in (BLOCKS, offsets)]
        write(*pair, pool.blocks, LAYER, *slots, kv_scales=pool.scales)
    yield Check(f"write_kv    {name}", _bytes_apart(ours.raw, theirs.raw), 0, "bytes")


def _bytes_apart(one: torch.Tensor, other: torch.Tensor) -> int:
    return int((one.cpu() != other.cpu()).sum())


def _states(heads: int, head_dim: int, stored: torch.dtype) -> torch.Tensor:
    """Numbers [6, heads, head_dim] of all sizes: zeros, tiny and huge rows, one that stands out.

    Those for fp8 lie on its grid: Triton's interpreter rounds other numbers to it wrongly.
    """
    chance = torch.Generator().manual_seed(2)
    if stored == FP8:
        grid = torch.arange(256, dtype=torch.uint8).view(FP8).float()
        grid = grid[grid.isfinite() & (grid.abs() <= 448)]
        picked = torch.randint(0, len(grid), (6, heads, head_dim), generator=chance)
        states = grid[picked] / 64
        states[..., 3] = 7.0  # each row's largest, so that its scale is a power of 2
        return states
    states = torch.randn(6, heads, head_dim, generator=chance)
    states[0, 0] = 0.0
    states[2] *= 1e-6
    states[3] *= 1e4
    states[4, :, 1] = 300.0
    return states


def _copy_checks(name: str, pools: partial[tuple[PagedKV, PagedKV]]) -> Iterator[Check]:
    """Three copies, two from one block."""
    ours, theirs = pools()
    sources, targets = [0, 5, 5], [2, 1, 6]
    before = theirs.raw.clone()
    theirs.raw[targets] = before[sources]
    columns = (torch.tensor(c, dtype=torch.int32).numpy() for c in (sources, targets))
    ours.copy(*columns)
    yield Check(f"copy        {name}", _bytes_apart(ours.raw, theirs.raw), 0, "bytes")


def far_checks(device: str) -> Iterator[Check]:
    """The same at the end of a pool of more than 2 ** 31 elements (some GB of GPU memory)."""
    for kv_dtype in (None, INT8):
        name = "8-bit" if kv_dtype else "bfloat16"
        yield from attempted(f"far {name}", partial(_far_checks, name, kv_dtype, device))


def _far_checks(name: str, kv_dtype: torch.dtype | None, device: str) -> Iterator[Check]:
    shape = (LAYERS, 16, 8, 128, BF16)
    far = PagedKV(35_000, *shape, torch.device(device), kv_dtype)
    near = PagedKV(4, *shape, torch.device("cpu"), kv_dtype)
    assert far.blocks.numel() > 2**31
    end = far.num_blocks - 4
    chance = torch.Generator().manual_seed(3)
    _fill(near, chance)
    far.raw[end:] = near.raw.to(device)
    key, value = torch.randn(2, 2, 8, 128, generator=chance).to(BF16)
    query = torch.randn(2, 32, 128, generator=chance).to(BF16)
    blocks = torch.tensor([0, 1], dtype=torch.int32)
    lens = torch.tensor([32, 17], dtype=torch.int32)
    reference.write_kv(key, value, near.blocks, LAYER, blocks, blocks, kv_scales=near.scales)
    near.copy(blocks.numpy(), blocks.numpy() + 2)
    tables = blocks.view(1, 2).repeat(2, 1)
    right = reference.paged_decode_attention(
        query, near.blocks, LAYER, tables, lens, 0.1, kv_scales=near.scales
    )
    key, value, query, lens = (one.to(device) for one in (key, value, query, lens))
    there, offsets = (blocks + end).to(device), blocks.to(device)
    kernels.write_kv(key, value, far.blocks, LAYER, there, offsets, kv_scales=far.scales)
    far.copy(blocks.numpy() + end, blocks.numpy() + end + 2)
    yield Check(f"far writes and copies {name}", _bytes_apart(far.raw[end:], near.raw), 0, "bytes")
    place = (far.blocks, LAYER, (tables + end).to(device))
    got = kernels.paged_decode_attention(query, *place, lens, 0.1, kv_scales=far.scales)
    yield Check(f"far decode {name}", distance(got.cpu(), right), LIMITS[BF16])
    rows = (lens - 1, torch.ones_like(lens), offsets)
    got = kernels.paged_prefill_attention(query, *place, *rows, 0.1, kv_scales=far.scales)
    yield Check(f"far prefill {name}", distance(got.cpu(), right), LIMITS[BF16])


def _fill(pool: PagedKV, chance: torch.Generator) -> None:
    """Numbers of about 1 in every block."""
    cells = torch.randn(pool.blocks.shape, generator=chance)
    if pool.scales is not None:
        cells = (cells * 40).round().clamp(-127, 127)
        pool.scales.fill_(1 / 40)
    pool.blocks.copy_(cells)
