"""The small fused kernels where only a GPU shows it: graphs, compiling anew, 64-bit addresses."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import activation, norm, qkv, reference
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads
from tests.gpu.attempts import attempted
from tests.gpu.kernel_shapes import BF16
from tests.gpu.poison import error, limit

HEADS = Heads(32, 8, 128, 1.0)
ALL_HEADS = 48
FAR = 2**31


def op_gpu_checks(device: str) -> Iterator[Check]:
    """See the module; takes some 15 GB of GPU memory, and gives it back."""
    checks = (_graphs, _chain, _compiled_once, _far_norm, _far_silu, _far_place)
    for check in checks:
        yield from attempted(f"ops {check.__name__.strip('_')}", partial(check, device))
        torch.cuda.empty_cache()


class _Inputs:
    """The arguments of all three for T tokens, and a call of each."""

    def __init__(self, tokens: int, device: str) -> None:
        def numbers(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).to(BF16)

        self.states, self.added = numbers(tokens, 4096), numbers(tokens, 4096)
        self.weight, self.gates = numbers(4096), numbers(tokens, 2 * 14_336)
        self.projected = numbers(tokens, ALL_HEADS, HEADS.head_dim)
        self.cos = torch.randn(tokens, HEADS.head_dim, device=device)
        self.cache = PagedKV(8, 2, 16, HEADS.num_kv_heads, 128, BF16, torch.device(device))
        self.blocks = torch.arange(tokens, device=device, dtype=torch.int32) // 16
        self.blocks = torch.where(self.blocks < 8, self.blocks, -1)
        self.offsets = torch.arange(tokens, device=device, dtype=torch.int32) % 16

    def call(self, ops: Any = kernels) -> tuple[torch.Tensor, ...]:
        """Every result, of the kernels or of their reference."""
        place = (self.cache.blocks, None, 1, self.blocks, self.offsets, HEADS)
        ops.place(self.projected, self.cos, self.cos, *place)
        normed = ops.add_norm(self.states, self.added, self.weight, 1e-5)
        return normed, ops.silu_mul(self.gates), self.states, self.projected, self.cache.blocks


def _graphs(device: str) -> Iterator[Check]:
    """Captured, then replayed on other numbers."""
    inputs, others = _Inputs(5, device), _Inputs(5, device)
    inputs.call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = inputs.call()
    for name in ("states", "added", "gates", "projected", "cos"):
        getattr(inputs, name).copy_(getattr(others, name))
    inputs.cache.raw.zero_()
    graph.replay()
    worst = max(map(error, got, others.call(reference)))
    yield Check("ops replayed by a graph", worst, limit(BF16))


def _chain(device: str) -> Iterator[Check]:
    """Each reads at once what the one before writes: none may begin too early, in any replay."""
    weight = torch.randn(8192, device=device).to(BF16)
    begun = torch.randn(2048, 8192, device=device).to(BF16)
    states = begun.clone()

    def chain(between: Callable[[], None]) -> None:
        for _ in range(8):
            between()
            normed = kernels.add_norm(states, None, weight, 1e-5)
            between()
            half = kernels.silu_mul(normed)
            between()
            kernels.add_norm(states[:, :4096], half, weight[:4096], 1e-5)

    chain(torch.cuda.synchronize)
    right = states.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        states.copy_(begun)
        chain(lambda: None)
    differed = 0
    for _ in range(50):
        graph.replay()
        differed += int((states != right).any())
    yield Check("ops in a chain, replays that differ", differed, 0)


def _compiled_once(device: str) -> Iterator[Check]:
    """Other numbers of tokens, one alone included, compile nothing anew."""
    _Inputs(2, device).call()
    before = _compiled()
    for tokens in (1, 3, 5, 16, 17, 100, 300):
        _Inputs(tokens, device).call()
        # As part of a larger batch: addresses and strides of another kind.
        whole = _Inputs(tokens + 1, device)
        for name in ("states", "added", "gates", "projected", "cos", "blocks", "offsets"):
            setattr(whole, name, getattr(whole, name)[1:])
        whole.call()
    yield Check("ops compiled anew for other numbers of tokens", _compiled() - before, 0)


def _compiled() -> int:
    """Variants of the three kernels that are there."""
    found = (norm._add_norm, activation._gate_mul, qkv._place)
    return sum(len(cache[0]) for kernel in found for cache in kernel.device_caches.values())


def _far(rows: int, width: int, device: str) -> torch.Tensor:
    """Zeros of more numbers than 32 bits count, random ones in the last rows."""
    states = torch.zeros(rows, width, dtype=BF16, device=device)
    assert states.numel() > FAR
    states[-3:] = torch.randn(3, width, device=device)
    return states


def _last(name: str, ours: Callable[[], torch.Tensor], right: torch.Tensor) -> Check:
    return Check(f"far {name}", error(ours()[-3:], right), limit(BF16))


def _far_norm(device: str) -> Iterator[Check]:
    states = _far(140_000, 16_384, device)
    weight = torch.randn(16_384, device=device).to(BF16)
    right = reference.add_norm(states[-3:].clone(), states[-3:], weight, 1e-5)
    yield _last("add_norm", lambda: kernels.add_norm(states, states, weight, 1e-5), right)


def _far_silu(device: str) -> Iterator[Check]:
    states = _far(75_000, 28_672, device)
    yield _last("silu_mul", lambda: kernels.silu_mul(states), reference.silu_mul(states[-3:]))


def _far_place(device: str) -> Iterator[Check]:
    """A long prompt's last tokens, into the last blocks of a large pool."""
    tokens = 350_000
    projected = _far(tokens, ALL_HEADS * 128, device).view(tokens, ALL_HEADS, 128)
    angles = torch.randn(2, tokens, 128, device=device)
    shape = (2, 16, HEADS.num_kv_heads, 128, BF16, torch.device(device))
    far, near = PagedKV(35_000, *shape), PagedKV(3, *shape)
    assert far.blocks.numel() > FAR
    blocks = torch.full((tokens,), -1, dtype=torch.int32, device=device)
    blocks[-3:] = torch.arange(3, device=device)
    offsets = torch.full_like(blocks, 15)
    last = projected[-3:].clone()
    slots = (blocks[-3:], offsets[-3:], HEADS)
    reference.place(last, *angles[:, -3:], near.blocks, None, 1, *slots)
    blocks[-3:] += far.num_blocks - 3
    kernels.place(projected, *angles, far.blocks, None, 1, blocks, offsets, HEADS)
    yield Check("far place, queries", error(projected[-3:], last), limit(BF16))
    yield Check("far place, keys and values", error(far.blocks[-3:], near.blocks), limit(BF16))
