"""Attention and cache writes build for GPUs that need not be there, and once for all batches."""

import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.kv import host_int8 as packing
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launches import Launches, compiled_for
from tests.gpu.kernel_shapes import BF16, FP8, FP32, INT8

KV_HEADS, BLOCK_SIZE, NUM_BLOCKS = 2, 16, 8
BATCHES = ((2, 5), (1, 1), (3, 16), (16, 33), (17, 8))
"""Rows, and blocks that the longest has: all must be compiled by the first of them."""
CHUNK_TOKENS = 200
"""Tokens of each row of a prefill: enough to fill its largest tile."""
VARIANTS = {
    "": FULL,
    " window": AttentionVariant(100),
    " all": AttentionVariant(100, 50.0, torch.empty(16, dtype=BF16, device="meta")),
}
"""What is compiled apart from the rest: a window; a window, a cap and sinks."""
VARIED_HEAD_DIM = 64
LATENT, TURNED = 512, 64
FP8_GENERATION = 89
"""The first that has float8_e4m3fn, and so a cache of it."""


def attention_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    dtypes: tuple[torch.dtype, ...] = (BF16, FP32),
    heads: tuple[tuple[int, int], ...] = ((64, 3), (80, 1), (128, 4), (256, 1)),
    stored: tuple[torch.dtype | None, ...] = (None, INT8, FP8),
) -> Iterator[Check]:
    """Shared memory in bytes of each kernel, and how much later batches compile anew.

    `heads` are (head_dim, query heads of a KV head), `stored` the types of caches.
    """
    kinds = list(product(dtypes, stored, heads))
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                for dtype in dtypes:
                    yield from _packing(dtype, generation, launches)
                    yield from _rows(dtype, generation, launches)
                for dtype, kv_dtype, sizes in kinds:
                    if kv_dtype != FP8 or generation >= FP8_GENERATION:
                        yield from _Case(generation, launches, dtype, kv_dtype, *sizes).checks()


class _Case:
    """One kind of heads and cache on one generation."""

    def __init__(
        self,
        generation: int,
        launches: Launches,
        dtype: torch.dtype,
        kv_dtype: torch.dtype | None,
        head_dim: int,
        group: int,
    ) -> None:
        shape = (NUM_BLOCKS, 2, BLOCK_SIZE, KV_HEADS, head_dim, dtype)
        self._cache = PagedKV(*shape, torch.device("meta"), kv_dtype)
        self._generation, self._launches = generation, launches
        self._head_dim, self._group = head_dim, group
        self._variant = FULL

    def checks(self) -> Iterator[Check]:
        """Decode, prefill and writes."""
        # Heads change tiles, variants do not: they are built with one size of heads.
        for name in VARIANTS if self._head_dim == VARIED_HEAD_DIM else ("",):
            self._variant = VARIANTS[name]
            yield self._check(f"decode{name}", self._decode)
            yield self._check(f"prefill{name}", self._prefill)
        yield self._check("write_kv", self._write)

    def _check(self, kernel: str, launch: Callable[[int, int], None]) -> Check:
        for rows, blocks in BATCHES:
            launch(rows, blocks)
        kinds = "/".join(_named(kind) for kind in (self._cache.dtype, self._cache.kv_dtype))
        name = f"{kernel:<8} {self._head_dim} x {self._group} {kinds}"
        return _built(name, self._generation, self._launches)

    def _decode(self, rows: int, blocks: int) -> None:
        kernels.paged_decode_attention(
            self._query(rows),
            self._cache.blocks,
            rows % 2,
            _column(rows, blocks),
            _column(rows),
            0.1,
            kv_scales=self._cache.scales,
            variant=self._variant,
        )

    def _prefill(self, rows: int, blocks: int) -> None:
        kernels.paged_prefill_attention(
            self._query(rows * CHUNK_TOKENS),
            self._cache.blocks,
            rows % 2,
            _column(rows, blocks),
            *(_column(rows) for _ in range(3)),
            0.1,
            kv_scales=self._cache.scales,
            variant=self._variant,
        )

    def _write(self, rows: int, _blocks: int) -> None:
        shape = (rows, KV_HEADS, self._head_dim)
        pair = (torch.empty(shape, dtype=self._cache.dtype, device="meta") for _ in range(2))
        slots = (_column(rows) for _ in range(2))
        cache = self._cache
        kernels.write_kv(*pair, cache.blocks, rows % 2, *slots, kv_scales=cache.scales)

    def _query(self, tokens: int) -> torch.Tensor:
        """As part of a merged projection."""
        heads = self._group * KV_HEADS
        shape = (tokens, heads + 2 * KV_HEADS, self._head_dim)
        return torch.empty(shape, dtype=self._cache.dtype, device="meta")[:, :heads]


def _packing(dtype: torch.dtype, generation: int, launches: Launches) -> Iterator[Check]:
    """Blocks on their way to the host pool."""
    shape = (NUM_BLOCKS, 2, 2, BLOCK_SIZE, KV_HEADS, 128)
    pool = torch.empty(shape, dtype=dtype, device="meta")
    for count in (2, 1, 3, 16, 17):
        index = torch.empty(count, dtype=torch.int64, device="meta")
        packed_shape = (count, packing.packed_bytes(pool.shape))
        packed = torch.empty(packed_shape, dtype=torch.uint8, device="meta")
        kernels.pack_blocks(pool, index, index, packed)
    yield _built(f"pack_blocks {_named(dtype)}", generation, launches)
    kernels.unpack_blocks(packed, pool, index)
    yield _built(f"unpack_blocks {_named(dtype)}", generation, launches)


def _rows(dtype: torch.dtype, generation: int, launches: Launches) -> Iterator[Check]:
    """Latent rows in the sizes of DeepSeek V3 and of GLM-4.7-Flash."""
    shape = (NUM_BLOCKS, 2, BLOCK_SIZE, 1, LATENT + TURNED, dtype)
    cache = PagedKV(*shape, torch.device("meta"), latent=LATENT)
    for heads in (128, 20):
        for rows, blocks in BATCHES:
            query = torch.empty((rows, heads, LATENT + TURNED), dtype=dtype, device="meta")
            parts = query[..., :LATENT], query[..., LATENT:]
            where = cache.blocks, rows % 2, _column(rows, blocks), _column(rows)
            kernels.paged_row_attention(*parts, *where, 0.1)
        yield _built(f"rows     {heads} heads {_named(dtype)}", generation, launches)


def _built(name: str, generation: int, launches: Launches) -> Check:
    """Check that the launched programs fit the GPU, and were compiled once."""
    compiled: list[Any] = launches.take()
    used = max(kernel.metadata.shared for kernel in compiled)
    anew = len({kernel.hash for kernel in compiled}) - 1
    limit = SHARED_LIMITS_BYTES[generation] if not anew else 0
    note = f"bytes, {anew} compiled anew" if anew else "bytes"
    return Check(f"sm_{generation} {name}", used, limit, note)


def _column(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
