"""What the small fused kernels take, launched one after another from a CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.limits import LLAMA_3_8B, STATE_BYTES
from benchmarks.gpu.timing import seconds
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import activation, norm, qkv
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Norm, Ops

TOKENS = (1, 32, 128, 256, 8192)
TINY_TOKENS = (2,)
SHAPE = LLAMA_3_8B
HEADS = Heads(SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim, 1.0)
MERGED = SHAPE.heads + 2 * SHAPE.kv_heads
BLOCK_SIZE = 16
ANGLE_BYTES = 2 * SHAPE.head_dim * 4  # of a token: cosine and sine, float32
IN_CACHE_BYTES = 16 << 20
"""What the step before has just written is still in the device's cache, up to so much."""
APART_BYTES = 512 << 20
"""Larger inputs take turns over so much, so that no call finds its own there."""
LAUNCHES = 50
"""In a graph, of one input."""

Call = Callable[[], object]


def op_figures(job: Job) -> Iterator[Figure]:
    """Each kernel for Llama 3 8B's sizes: microseconds a launch, and the bandwidth in them."""
    tiny = torch.zeros(1, 16, dtype=torch.bfloat16, device=job.device)
    floor_s = _seconds([lambda: kernels.silu_mul(tiny)], job)
    yield Figure("a launch in a graph", floor_s * 1e6, "us")
    for tokens in TINY_TOKENS if job.tiny else TOKENS:
        for name, moved, ours, torchs in _kinds(tokens, job.device):
            copies = 1
            if moved > IN_CACHE_BYTES and not job.tiny:
                copies = -(-APART_BYTES // moved)
            took_s = _seconds([ours() for _ in range(copies)], job)
            with _late():
                late_s = _seconds([ours() for _ in range(copies)], job)
            torch_s = _seconds([torchs()], job)
            yield Figure(
                f"{name} of {tokens} tokens",
                took_s * 1e6,
                "us",
                note=f"{moved / took_s / 1e9:,.0f} GB/s; us if never early {late_s * 1e6:,.1f}, "
                f"torch {torch_s * 1e6:,.1f}",
                raw={
                    "took_s": took_s,
                    "late_s": late_s,
                    "torch_s": torch_s,
                    "limit_s": moved / job.limits.bytes_per_s,
                },
            )


@contextmanager
def _late() -> Iterator[None]:
    """In it, no kernel begins before the one in front of it has ended."""
    with ExitStack() as stack:
        for module in (activation, norm, qkv):
            stack.enter_context(patch.object(module, "early", bool))
        yield


def _kinds(
    tokens: int, device: str
) -> Iterator[tuple[str, int, Callable[[], Call], Callable[[], Call]]]:
    """Name, bytes read and written, and what makes a call on new inputs: ours, torch's."""
    width, inner = SHAPE.hidden, SHAPE.intermediate
    torchs = Ops()

    def norm_call(add_norm: Callable[..., object]) -> Call:
        states, added = _numbers(device, tokens, width), _numbers(device, tokens, width)
        weight = _numbers(device, width)
        return lambda: add_norm(states, added, weight, 1e-5)

    def silu_call(silu_mul: Callable[..., object]) -> Call:
        states = _numbers(device, tokens, 2 * inner)
        return lambda: silu_mul(states)

    def place() -> Call:
        projected = _numbers(device, tokens, MERGED, SHAPE.head_dim)
        cos, sin, cache, blocks, offsets = _slots(tokens, device)
        pool = (cache.blocks, None, 0, blocks, offsets, HEADS)
        return lambda: kernels.place(projected, cos, sin, *pool)

    def turn_and_write() -> Call:
        projected = _numbers(device, tokens, MERGED, SHAPE.head_dim)
        cos, sin, cache, blocks, offsets = _slots(tokens, device)
        turned = projected[:, : HEADS.num_heads + HEADS.num_kv_heads]
        pair = projected.split((HEADS.num_heads, HEADS.num_kv_heads, HEADS.num_kv_heads), 1)[1:]
        slots = (cache.blocks, 0, blocks, offsets)
        return lambda: (torchs.rotate(turned, cos, sin), kernels.write_kv(*pair, *slots))

    norm_bytes, silu_bytes = 4 * tokens * width, 3 * tokens * inner
    place_bytes = tokens * (2 * MERGED * SHAPE.head_dim * STATE_BYTES + ANGLE_BYTES)
    yield (
        "add_norm",
        norm_bytes * STATE_BYTES,
        lambda: norm_call(kernels.add_norm),
        lambda: norm_call(lambda *one: torchs.norm(*one[:2], Norm(*one[2:]))),
    )
    yield (
        "silu_mul",
        silu_bytes * STATE_BYTES,
        lambda: silu_call(kernels.silu_mul),
        lambda: silu_call(torchs.silu_mul),
    )
    yield "place", place_bytes, place, turn_and_write


def _slots(
    tokens: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, PagedKV, torch.Tensor, torch.Tensor]:
    """Angles, and a place of its own for every token."""
    angles = torch.randn(tokens, SHAPE.head_dim // 2, device=device).repeat(1, 2)
    shape = (BLOCK_SIZE, SHAPE.kv_heads, SHAPE.head_dim, torch.bfloat16, torch.device(device))
    cache = PagedKV(-(-tokens // BLOCK_SIZE), 1, *shape)
    index = torch.arange(tokens, dtype=torch.int32, device=device)
    return angles.cos(), angles.sin(), cache, index // BLOCK_SIZE, index % BLOCK_SIZE


def _numbers(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device).to(torch.bfloat16)


def _seconds(calls: list[Call], job: Job) -> float:
    """The mean time of one call, in a row with others as a step has them."""
    launches = 1 if job.tiny else max(len(calls), LAUNCHES)
    work = [calls[index % len(calls)] for index in range(launches)]

    def run() -> None:
        for call in work:
            call()

    if not job.device.startswith("cuda"):
        return seconds(run, job.device, 1) / launches
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return seconds(graph.replay, job.device, 20) / launches
