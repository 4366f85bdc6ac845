"""Steps of random rows over a pool of states, whatever computes them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule, Recurrence, Scan
from daemon.memory.layout import KVLayout
from daemon.memory.state_layout import CONV, SSM, StatePart, state_layout
from daemon.state.batch import Batch
from daemon.wire.columns import int32

NUM_SLOTS, LAYER, PAGE_BYTES = 4, 1, 4096

Make = Callable[[FlatBatch, PagedKV], Recurrence]


class Layer(NamedTuple):
    """A recurrent layer: its state, and how a step of random inputs is computed."""

    parts: tuple[StatePart, ...]
    compute: Callable[[Recurrence, int, torch.Generator], torch.Tensor]


def pool_of(parts: tuple[StatePart, ...], dtype: torch.dtype = torch.float32) -> PagedKV:
    """A pool for a model of two recurrent layers, all of whose pages are NaN."""
    states = state_layout([parts, parts], PAGE_BYTES, dtype.itemsize)
    layout = KVLayout((), 16, PAGE_BYTES, states=states)
    pool = PagedKV.of_layout(NUM_SLOTS * states.num_pages + 3, layout, dtype, torch.device("cpu"))
    pool.raw.fill_(0xFF)
    return pool


def step_of(pool: PagedKV, rows: list[tuple[int, int, int]]) -> FlatBatch:
    """A step of (slot, tokens before it, its tokens); each slot's pages lie apart."""
    num_pages = pool.state_pages
    pages = np.random.default_rng(5).permutation(pool.num_blocks)[: NUM_SLOTS * num_pages]
    table = pages.astype(np.int32).reshape(NUM_SLOTS, num_pages)
    slots, starts, counts = zip(*rows, strict=True)
    yes = np.ones(len(rows), np.uint8)
    batch = Batch(
        instance=0,
        step=0,
        slots=int32(slots),
        starts=int32(starts),
        counts=int32(counts),
        samples=yes,
        fed=yes,
    )
    return flatten(batch, int32([0] * sum(counts)), table, *pool.shape)


def randn(chance: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=chance)


def convolution(num_channels: int, taps: int, has_bias: bool, activated: bool) -> Layer:
    """A convolution whose inputs are some columns of wider rows."""

    def compute(made: Recurrence, count: int, chance: torch.Generator) -> torch.Tensor:
        fixed = torch.Generator().manual_seed(1)
        weight = randn(fixed, num_channels, taps)
        bias = randn(fixed, num_channels) if has_bias else None
        inputs = randn(chance, count, num_channels + 3)[:, :num_channels]
        return made.convolve(LAYER, Convolution(inputs, weight, bias, activated))

    return Layer((StatePart(CONV, num_channels, taps - 1),), compute)


def delta_net(num_keys: int, num_heads: int, sizes: tuple[int, int], channels: bool) -> Layer:
    """A gated delta rule; `channels` decay apart."""

    def compute(made: Recurrence, count: int, chance: torch.Generator) -> torch.Tensor:
        query, key = (randn(chance, count, num_keys, sizes[0]) for _ in range(2))
        value, beta = randn(chance, count, num_heads, sizes[1]), randn(chance, count, num_heads)
        shape = (num_heads, sizes[0]) if channels else (num_heads,)
        decay = -randn(chance, count, *shape).exp()
        rule = DeltaRule(query, key, value, decay, beta.sigmoid())
        return made.delta_rule(LAYER, rule)

    return Layer((StatePart(SSM, num_heads, sizes[0] * sizes[1], is_float32=True),), compute)


def mamba_2(num_groups: int, num_heads: int, sizes: tuple[int, int], has_direct: bool) -> Layer:
    """A scan of heads."""

    def compute(made: Recurrence, count: int, chance: torch.Generator) -> torch.Tensor:
        fixed = torch.Generator().manual_seed(2)
        rates, direct = -randn(fixed, num_heads).exp(), randn(fixed, num_heads)
        inputs, steps = randn(chance, count, num_heads, sizes[0]), randn(chance, count, num_heads)
        write, read = (randn(chance, count, num_groups, sizes[1]) for _ in range(2))
        scan = Scan(inputs, steps.exp(), rates, write, read, direct if has_direct else None)
        return made.chunk_scan(LAYER, scan)

    return Layer((StatePart(SSM, num_heads, sizes[0] * sizes[1], is_float32=True),), compute)


def mamba_1(num_channels: int, size: int) -> Layer:
    """A scan of channels."""

    def compute(made: Recurrence, count: int, chance: torch.Generator) -> torch.Tensor:
        fixed = torch.Generator().manual_seed(3)
        rates, direct = -randn(fixed, num_channels, size).exp(), randn(fixed, num_channels)
        inputs, steps = (randn(chance, count, num_channels) for _ in range(2))
        write, read = (randn(chance, count, size) for _ in range(2))
        scan = Scan(inputs, steps.exp(), rates, write, read, direct)
        return made.selective_scan(LAYER, scan)

    return Layer((StatePart(SSM, num_channels, size, is_float32=True),), compute)


LAYERS = {
    "convolution": convolution(70, 4, True, True),
    "convolution of three": convolution(300, 3, False, False),
    "gated delta": delta_net(2, 4, (16, 32), False),
    "gated delta, odd": delta_net(1, 3, (5, 6), False),
    "gated delta, long keys": delta_net(1, 2, (1000, 1), False),
    "kimi's delta": delta_net(2, 2, (16, 16), True),
    "mamba 2": mamba_2(2, 4, (6, 16), True),
    "mamba 2, odd": mamba_2(1, 3, (4, 10), False),
    "mamba 1": mamba_1(70, 16),
    "mamba 1, odd": mamba_1(9, 5),
}


def walked(
    layer: Layer, make: Make, steps: list[list[int]], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """The outputs of steps that give each slot so many tokens, 0: none; and the states behind."""
    pool, chance = pool_of(layer.parts, dtype), torch.Generator().manual_seed(7)
    done, found = [0] * NUM_SLOTS, list[torch.Tensor]()
    for counts in steps:
        rows = [(slot, done[slot], count) for slot, count in enumerate(counts) if count]
        if rows:
            made = make(step_of(pool, rows), pool)
            found.append(layer.compute(made, sum(counts), chance))
        done = [before + count for before, count in zip(done, counts, strict=True)]
    return [*found, pool.raw.view(torch.float32).nan_to_num(-1.0)]
