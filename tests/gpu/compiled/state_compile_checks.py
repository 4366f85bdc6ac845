"""The kernels of states build for GPUs that need not be there, and once for all batches."""

import tempfile
from collections.abc import Callable, Iterator

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import DeviceStateRows
from tests.gpu.compiled.launch_checks import launch_checks
from tests.gpu.compiled.launches import compiled_for
from tests.gpu.kernel_shapes import BF16, FP32

RULES = ((16, 32, 128, 128, False), (32, 32, 128, 128, True), (16, 48, 256, 96, False))
"""Heads of keys and of values, their sizes, and whether channels decay apart: Qwen3-Next, Kimi
Linear, and odd ones."""
SCANS = ((1, 128, 64, 128), (8, 96, 80, 128), (1, 24, 64, 256))
"""Groups, heads, inputs of a head and its state: Granite 4 H, Nemotron-H, Falcon-H1."""
CHANNELS = ((8192, 16), (2048, 32))
"""Channels and state of Mamba 1."""
CONVOLUTIONS = ((8192, 4, True), (2048, 3, False))
"""Channels, taps, and whether they are activated: Qwen3-Next and LFM2."""
_PAGES, _PAGE_BYTES = 40, 1 << 20


def state_compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    dtypes: tuple[torch.dtype, ...] = (BF16, FP32),
    rules: tuple[tuple[int, int, int, int, bool], ...] = RULES,
    scans: tuple[tuple[int, int, int, int], ...] = SCANS,
    channels: tuple[tuple[int, int], ...] = CHANNELS,
    convolutions: tuple[tuple[int, int, bool], ...] = CONVOLUTIONS,
) -> Iterator[Check]:
    """Shared memory in bytes, and how much later batches compile anew, for each kernel."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                for dtype in dtypes:
                    launching: list[tuple[str, Callable[[int], None]]] = [
                        *((f"delta_rule {sizes}", _rule(sizes, dtype)) for sizes in rules),
                        *((f"chunk_scan {sizes}", _scan(sizes, dtype)) for sizes in scans),
                        *((f"selective_scan {it}", _channels(it, dtype)) for it in channels),
                        *((f"convolve {it}", _convolution(it, dtype)) for it in convolutions),
                    ]
                    for name, launch in launching:
                        said = f"{name} {str(dtype).removeprefix('torch.')}"
                        yield from launch_checks(said, launch, generation, launches)


def _rule(sizes: tuple[int, int, int, int, bool], dtype: torch.dtype) -> Callable[[int], None]:
    num_keys, num_heads, key_dim, value_dim, apart = sizes

    def launch(tokens: int) -> None:
        width = 2 * num_keys * key_dim + num_heads * value_dim
        parts = _meta(tokens, width, dtype=dtype).split(
            [num_keys * key_dim, num_keys * key_dim, num_heads * value_dim], 1
        )
        query, key, value = (
            part.unflatten(1, (heads, -1))
            for part, heads in zip(parts, (num_keys, num_keys, num_heads), strict=True)
        )
        shape = (num_heads, key_dim) if apart else (num_heads,)
        decay, beta = _meta(tokens, *shape, dtype=FP32), _meta(tokens, num_heads, dtype=dtype)
        kernels.delta_rule(query, key, value, decay, beta, _places(num_heads, 2), _rows(tokens))

    return launch


def _scan(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> Callable[[int], None]:
    num_groups, num_heads, num_inputs, size = sizes

    def launch(tokens: int) -> None:
        wide = _meta(tokens, num_heads * num_inputs + 2 * num_groups * size, dtype=dtype)
        inputs = wide[:, : num_heads * num_inputs].unflatten(1, (num_heads, num_inputs))
        write = wide[:, -num_groups * size :].unflatten(1, (num_groups, size))
        rates = _meta(num_heads, dtype=FP32)
        steps, places = _meta(tokens, num_heads, dtype=dtype), _places(num_heads, 2)
        kernels.chunk_scan(inputs, steps, rates, write, write, rates, places, _rows(tokens))

    return launch


def _channels(sizes: tuple[int, int], dtype: torch.dtype) -> Callable[[int], None]:
    width, size = sizes

    def launch(tokens: int) -> None:
        inputs, write = _meta(tokens, width, dtype=dtype), _meta(tokens, 2 * size, dtype=dtype)
        rates, direct = _meta(width, size, dtype=FP32), _meta(width, dtype=FP32)
        parts = inputs, inputs, rates, write[:, :size], write[:, :size], direct
        kernels.selective_scan(*parts, _places(width // 128, 5), _rows(tokens))

    return launch


def _convolution(sizes: tuple[int, int, bool], dtype: torch.dtype) -> Callable[[int], None]:
    width, taps, activated = sizes

    def launch(tokens: int) -> None:
        inputs = _meta(tokens, 2 * width, dtype=dtype)[:, :width]
        weight, bias = _meta(width, taps, dtype=dtype), _meta(width, dtype=dtype)
        where = _places(width // 256, 5), _rows(tokens), dtype
        kernels.convolve(inputs, weight, bias if activated else None, activated, *where)

    return launch


def _places(count: int, columns: int) -> torch.Tensor:
    return _meta(count, columns, dtype=torch.int64)


def _rows(tokens: int) -> DeviceStateRows:
    """A row for each token, as far as steps have rows."""
    count = min(tokens, 256)
    starts, firsts, counts = (_meta(count, dtype=torch.int32) for _ in range(3))
    pages = _meta(count, 30, dtype=torch.int32)
    pool = _meta(_PAGES, _PAGE_BYTES, dtype=torch.uint8)
    return DeviceStateRows(pool, pages, starts, firsts, counts, -(-tokens // count))


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
