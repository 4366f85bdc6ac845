"""The Triton kernels against their torch references, on a GPU or through the interpreter."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.paged import LAYER, LAYERS, Paged, Shape, paged
from benchmarks.gpu.report import Check
from daemon.engine import kernels
from daemon.engine.kernels import reference

SPARE = 3
LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Rounding of inputs of about 1 in each type; the interpreter and a GPU both stay within."""

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16

SMALL = (
    Shape(4, 4, 64, 16, FP32, (0, 0, 0), (1, 16, 17)),
    Shape(9, 3, 64, 16, FP32, (7, 200, 0, 64), (5, 1, 33, 0)),
    Shape(2, 2, 80, 16, FP32, (30,), (20,)),
    Shape(6, 2, 96, 32, FP32, (1, 40), (1, 9)),
    Shape(8, 1, 128, 16, FP32, (130,), (6,)),
    Shape(16, 1, 64, 64, FP32, (0, 3), (2, 70)),
    Shape(5, 1, 256, 128, FP32, (140,), (3,)),
    Shape(14, 2, 64, 16, BF16, (37, 300), (4, 1)),
    Shape(8, 4, 128, 32, BF16, (0, 90), (40, 11)),
    Shape(4, 2, 80, 16, FP16, (12, 0), (7, 5)),
)
"""Small enough for the interpreter; every head size, dtype, odd groups, empty rows."""

_KV_HEADS_GROUP_BLOCK = ((8, 4, 16), (4, 7, 32), (2, 16, 128), (12, 1, 64))
LARGE = tuple(
    Shape(kv_heads * group, kv_heads, head_dim, block_size, dtype, starts, counts)
    # Fewer in float32, whose products take seconds each to compile.
    for dtype, kinds in ((BF16, 4), (FP16, 1), (FP32, 1))
    for head_dim in (64, 80, 96, 128, 256)
    for kv_heads, group, block_size in _KV_HEADS_GROUP_BLOCK[:kinds]
    for starts, counts in (
        ((0, 1000, 33, 2047), (700, 513, 1, 129)),
        (tuple(range(0, 4000, 250)), (1,) * 16),
    )
)


def attention_checks(shapes: tuple[Shape, ...], device: str) -> Iterator[Check]:
    """Decode and prefill attention of each shape."""
    for seed, shape in enumerate(shapes):
        case = paged(shape, device, seed, SPARE)
        yield _check_decode(shape, case)
        yield _check_prefill(shape, case)
        if len(shape.counts) > 1:
            yield _check_gaps(shape, case)


def _check_decode(shape: Shape, case: Paged) -> Check:
    """One token a row; a row without tokens too."""
    query = case.query[: len(shape.lengths)]
    arguments = (case.kv_cache, LAYER, case.block_tables, case.lengths, shape.scale)
    got = kernels.paged_decode_attention(query, *arguments, out=_poison(query))
    expected = reference.paged_decode_attention(query, *arguments)
    return Check(f"decode  {shape}", _error(got, expected), LIMITS[shape.dtype])


def _check_prefill(shape: Shape, case: Paged) -> Check:
    """Chunks of mixed lengths; queries of no row stay untouched."""
    arguments = (case.kv_cache, LAYER, case.block_tables, case.starts, case.counts)
    rest = (case.row_offsets, shape.scale)
    poison = _poison(case.query)
    got = kernels.paged_prefill_attention(case.query, *arguments, *rest, out=poison)
    expected = reference.paged_prefill_attention(case.query, *arguments, *rest)
    tokens = sum(shape.counts)
    error = _error(got[:tokens], expected[:tokens])
    if not got[tokens:].isnan().all():
        return Check(f"prefill {shape}", float("nan"), 0.0, "wrote tokens of no row")
    return Check(f"prefill {shape}", error, LIMITS[shape.dtype])


def _check_gaps(shape: Shape, case: Paged) -> Check:
    """Every second row alone, as when the others' single tokens go to the decode kernel."""
    columns = (case.block_tables, case.starts, case.counts, case.row_offsets[:-1])
    some = [column[1::2].contiguous() for column in columns]
    arguments = (case.kv_cache, LAYER, *some, shape.scale)
    got = kernels.paged_prefill_attention(case.query, *arguments, out=_poison(case.query))
    expected = reference.paged_prefill_attention(case.query, *arguments)
    mine = torch.zeros(len(case.query), dtype=torch.bool, device=case.query.device)
    for row in range(1, len(shape.counts), 2):
        first = sum(shape.counts[:row])
        mine[first : first + shape.counts[row]] = True
    if not got[~mine].isnan().all():
        return Check(f"prefill gaps {shape}", float("nan"), 0.0, "wrote tokens of no row")
    return Check(f"prefill gaps {shape}", _error(got[mine], expected[mine]), LIMITS[shape.dtype])


def far_checks(device: str) -> Iterator[Check]:
    """The same at the end of a pool of more than 2 ** 31 elements (5 GB of GPU memory)."""
    cache = torch.zeros(35_000, LAYERS, 2, 16, 8, 128, dtype=BF16, device=device)
    assert cache.numel() > 2**31
    end = len(cache) - 4
    cache[end:] = torch.randn(cache[end:].shape, device=device)
    key, value = torch.randn(2, 2, 8, 128, dtype=BF16, device=device)
    blocks = torch.tensor([end, end + 1], dtype=torch.int32, device=device)
    expected = cache[end:].clone()
    kernels.write_kv(key, value, cache, LAYER, blocks, blocks - end)
    reference.write_kv(key, value, expected, LAYER, blocks - end, blocks - end)
    kernels.copy_blocks(cache, blocks, blocks + 2)
    reference.copy_blocks(expected, blocks - end, blocks - end + 2)
    yield Check("far writes and copies", int((cache[end:] != expected).sum()), 0)
    lens = torch.tensor([32, 17], dtype=torch.int32, device=device)
    tables = blocks.view(1, 2).repeat(2, 1)
    query = torch.randn(2, 32, 128, dtype=BF16, device=device)
    got = kernels.paged_decode_attention(query, cache, LAYER, tables, lens, 0.1)
    near = reference.paged_decode_attention(query, expected, LAYER, tables - end, lens, 0.1)
    yield Check("far decode", _error(got, near), LIMITS[BF16])
    columns = (lens - 1, torch.ones_like(lens), torch.arange(2, dtype=torch.int32, device=device))
    got = kernels.paged_prefill_attention(query, cache, LAYER, tables, *columns, 0.1)
    yield Check("far prefill", _error(got, near), LIMITS[BF16])


def cache_checks(device: str) -> Iterator[Check]:
    """`write_kv` and `copy_blocks`, exact in every type."""
    for dtype in (FP32, FP16, BF16):
        for kv_heads, head_dim, block_size in ((3, 64, 16), (2, 80, 32), (9, 128, 16)):
            name = f"{kv_heads}x{head_dim} block {block_size} {str(dtype).removeprefix('torch.')}"
            size = (7, LAYERS, 2, block_size, kv_heads, head_dim)
            cache = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)
            yield Check(f"write_kv    {name}", _written_wrong(cache.to(device)), 0)
            yield Check(f"copy_blocks {name}", _copied_wrong(cache.to(device)), 0)


def _written_wrong(cache: torch.Tensor) -> int:
    """Cells that differ from the reference after a write of six tokens, two of them dropped."""
    block_size, kv_heads, head_dim = cache.shape[3:]
    wide = torch.randn(6, 2 * kv_heads + 1, head_dim).to(cache.dtype).to(cache.device)
    key, value = wide[:, :kv_heads], wide[:, kv_heads : 2 * kv_heads]
    blocks = torch.tensor([6, -1, 0, 3, 3, -1], dtype=torch.int32, device=cache.device)
    last = block_size - 1
    offsets = torch.tensor([0, 5, last, 1, 2, 0], dtype=torch.int32, device=cache.device)
    expected = cache.clone()
    reference.write_kv(key, value, expected, LAYER, blocks, offsets)
    kernels.write_kv(key, value, cache, LAYER, blocks, offsets)
    return int((cache != expected).sum())


def _copied_wrong(cache: torch.Tensor) -> int:
    """Cells that differ from the reference after three copies, two from one block."""
    sources = torch.tensor([0, 5, 5], dtype=torch.int32, device=cache.device)
    targets = torch.tensor([2, 1, 6], dtype=torch.int32, device=cache.device)
    expected = cache.clone()
    reference.copy_blocks(expected, sources, targets)
    kernels.copy_blocks(cache, sources, targets)
    return int((cache != expected).sum())


def _poison(query: torch.Tensor) -> torch.Tensor:
    return torch.full_like(query, torch.nan)


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative where values exceed 1; NaN where either has one."""
    if not got.numel():
        return 0.0
    difference = (got.float() - expected.float()).abs() / expected.float().abs().clamp(min=1.0)
    return float(difference.max())
