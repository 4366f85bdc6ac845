"""What the device can do at best, measured: copies, matrix products, launches."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.timing import host_seconds, seconds


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is copied and multiplied."""

    copy_bytes: int
    pinned_bytes: int
    products: tuple[tuple[int, int, int], ...]  # rows, inputs, outputs
    kernels: int  # in a graph
    repeats: int


FULL = Sizes(
    copy_bytes=2 << 30,
    pinned_bytes=1 << 30,
    # Squares, and the two largest products of a prefill of 8192 tokens of Llama 3 8B.
    products=(
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (16_384, 8192, 8192),
        (8192, 4096, 28_672),
        (8192, 14_336, 4096),
    ),
    kernels=200,
    repeats=20,
)
TINY = Sizes(1 << 16, 1 << 16, ((32, 32, 32), (64, 32, 32)), 4, 2)


def limit_figures(device: str, sizes: Sizes) -> Iterator[Figure]:
    """Each limit as it is measured; `gpu_bench.limits_of` takes the best of them."""
    yield _copy_figure(device, sizes)
    yield from _product_figures(device, sizes)
    yield from _pinned_figures(device, sizes)
    if device.startswith("cuda"):
        yield from _launch_figures(device, sizes)


def _copy_figure(device: str, sizes: Sizes) -> Figure:
    source = torch.randint(0, 255, (sizes.copy_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = seconds(lambda: target.copy_(source), device, sizes.repeats)
    raw = {"bytes": sizes.copy_bytes, "copy_s": copy_s}
    return Figure("copy, read + write", 2 * sizes.copy_bytes / copy_s / 1e9, "GB/s", raw=raw)


def _product_figures(device: str, sizes: Sizes) -> Iterator[Figure]:
    best = 0.0
    for rows, inputs, outputs in sizes.products:
        # Random numbers: on zeros the same product draws less power and runs faster.
        left = torch.randn(rows, inputs, device=device).bfloat16()
        right = torch.randn(outputs, inputs, device=device).bfloat16().t()
        out = torch.empty(rows, outputs, device=device, dtype=torch.bfloat16)
        multiply = partial(torch.mm, left, right, out=out)
        product_s = seconds(multiply, device, sizes.repeats)
        rate = 2 * rows * inputs * outputs / product_s
        best = max(best, rate)
        name = f"bf16 matmul {rows} x {inputs} x {outputs}"
        yield Figure(name, rate / 1e12, "TFLOP/s", raw={"product_s": product_s})
    yield Figure("bf16 matmul, best", best / 1e12, "TFLOP/s")


def _pinned_figures(device: str, sizes: Sizes) -> Iterator[Figure]:
    size, cuda = sizes.pinned_bytes, device.startswith("cuda")
    host = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
    there = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    out_s = seconds(lambda: host.copy_(there, non_blocking=True), device, 5)
    in_s = seconds(lambda: there.copy_(host, non_blocking=True), device, 5)
    raw = {"bytes": size, "out_s": out_s, "in_s": in_s}
    yield Figure("pinned copy to the host", size / out_s / 1e9, "GB/s", raw=raw)
    yield Figure("pinned copy from the host", size / in_s / 1e9, "GB/s", raw=raw)


def _launch_figures(device: str, sizes: Sizes) -> Iterator[Figure]:
    """A tiny kernel alone and in a CUDA graph."""
    cell = torch.zeros(1, device=device)
    seconds(lambda: cell.add_(1), device, 3)
    launches = [host_seconds(lambda: cell.add_(1)) for _ in range(sizes.kernels)]
    torch.cuda.synchronize()
    yield Figure("kernel launch, host", sorted(launches)[len(launches) // 2] * 1e6, "us")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(sizes.kernels):
            cell.add_(1)
    first_s = _replay_s(graph)
    warm = sorted(_replay_s(graph) for _ in range(sizes.repeats))
    warm_s = warm[len(warm) // 2]
    calls = sorted(host_seconds(graph.replay) for _ in range(sizes.repeats))
    torch.cuda.synchronize()
    raw = {"first_s": first_s, "warm_s": warm, "kernels": sizes.kernels}
    yield Figure("kernel in a graph, first replay", first_s / sizes.kernels * 1e6, "us", raw=raw)
    yield Figure("kernel in a graph, warm", warm_s / sizes.kernels * 1e6, "us", raw=raw)
    yield Figure("graph launch, host", calls[len(calls) // 2] * 1e6, "us")


def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
    """From the call to the last kernel's end."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return time.perf_counter() - began
