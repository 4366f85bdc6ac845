"""The small fused kernels build for GPUs that need not be there, and once for all batches."""

import tempfile
from collections.abc import Iterator

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Norm
from tests.gpu.compiled.launch_checks import launch_checks
from tests.gpu.compiled.launches import Launches, compiled_for
from tests.gpu.kernel_shapes import BF16, FP8, FP32, INT8

WIDTHS = ((4096, 14_336), (576, 1536), (16_384, 53_248))
"""Widths of the states and of the MLP: Llama 3 8B, SmolLM2 135M, Llama 3 405B."""
HEADS = ((32, 8, 128, 128, False), (40, 40, 80, 32, False), (16, 8, 256, 256, True))
"""Query heads, KV heads, head_dim, dimensions that turn, and whether heads have norms."""
FP8_GENERATION = 89
"""The first that knows float8_e4m3fn."""


def op_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    dtypes: tuple[torch.dtype, ...] = (BF16, FP32),
    widths: tuple[tuple[int, int], ...] = WIDTHS,
    heads: tuple[tuple[int, int, int, int, bool], ...] = HEADS,
) -> Iterator[Check]:
    """Shared memory in bytes, and how much later batches compile anew, for each kernel."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                for dtype in dtypes:
                    for width, inner in widths:
                        yield from _norm(width, dtype, generation, launches)
                        yield from _silu(inner, dtype, generation, launches)
                    for sizes in heads:
                        yield from _place(sizes, dtype, generation, launches)


def _norm(width: int, dtype: torch.dtype, generation: int, launches: Launches) -> Iterator[Check]:
    weight = _meta(width, dtype=dtype)

    def launch(tokens: int) -> None:
        states = _meta(tokens, width, dtype=dtype)
        kernels.add_norm(states, torch.empty_like(states), weight, 1e-5)

    yield from launch_checks(f"add_norm {width} {_name(dtype)}", launch, generation, launches)


def _silu(width: int, dtype: torch.dtype, generation: int, launches: Launches) -> Iterator[Check]:
    def launch(tokens: int) -> None:
        kernels.silu_mul(_meta(tokens, 2 * width, dtype=dtype))

    yield from launch_checks(f"silu_mul {width} {_name(dtype)}", launch, generation, launches)


def _place(
    sizes: tuple[int, int, int, int, bool], dtype: torch.dtype, generation: int, launches: Launches
) -> Iterator[Check]:
    num_heads, num_kv_heads, head_dim, rotary_dim, normed = sizes
    norm = Norm(_meta(head_dim, dtype=dtype), 1e-6) if normed else None
    heads = Heads(num_heads, num_kv_heads, head_dim, 1.0, norm, norm)
    for kv_dtype in (None, INT8, FP8):
        if kv_dtype == FP8 and generation < FP8_GENERATION:
            continue
        shape = (4, 2, 16, num_kv_heads, head_dim, dtype)
        cache = PagedKV(*shape, torch.device("meta"), kv_dtype)

        def launch(tokens: int, cache: PagedKV = cache) -> None:
            projected = _meta(tokens, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
            angles = (_meta(tokens, rotary_dim, dtype=FP32) for _ in range(2))
            # Real ones, that begin where nothing is aligned, as parts of longer columns do.
            slots = [torch.empty(tokens + 1, dtype=torch.int32)[1:] for _ in range(2)]
            kernels.place(projected, *angles, cache.blocks, cache.scales, tokens % 2, *slots, heads)

        name = f"place {sizes} {_name(dtype)}/{_name(cache.kv_dtype)}"
        yield from launch_checks(name, launch, generation, launches)


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
