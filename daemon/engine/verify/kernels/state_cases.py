"""Recurrent layers over states in scattered pages, against torch."""

from collections.abc import Callable

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch, flatten
from daemon.engine.cuda.recurrence import MakeCudaRecurrence
from daemon.engine.kv.pool import PagedKV
from daemon.engine.kv.states import StatePages
from daemon.engine.layers.recurrent.recurrence import (
    Convolution,
    DeltaRule,
    Recurrence,
    Scan,
    TorchRecurrence,
)
from daemon.engine.verify.kernels.bench import LAYER, Bench
from daemon.engine.verify.kernels.compare import WrongError, alike
from daemon.engine.verify.kernels.subject import (
    CHANNELS_DECAY,
    HEADS_DECAY,
    SCANS_HEADS,
    RecurrentSizes,
)
from daemon.memory.layout import KVLayout
from daemon.memory.state_layout import CONV, SSM, StatePart, own_page_bytes, state_layout
from daemon.state.batch import Batch
from daemon.wire.columns import int32

_STEPS = (((0, 1), (0, 5), (0, 1)), ((5, 1), (1, 19), (1, 1)))
"""Tokens before each step, and of it: of three sequences, which take turns in the rows."""
_TURNS = ((0, 1, 2), (1, 0, 2))
_SPARE = 2
"""Pages of no sequence."""
_UNTOUCHED = 0xFF

Work = Callable[[Recurrence], torch.Tensor]


def try_states(bench: Bench) -> None:
    """Sequences that begin, alone and in chunks, then go on; pages hold NaN at first."""
    for sizes in bench.subject.recurrent:
        _try_part(bench, sizes, CONV)
        if sizes.rule:
            _try_part(bench, sizes, SSM)


def _try_part(bench: Bench, sizes: RecurrentSizes, part: str) -> None:
    what = f"{sizes.rule} of {sizes.num_heads} heads" if part == SSM else "a convolution"
    ours, theirs = _pool(bench, sizes), _pool(bench, sizes)
    make = MakeCudaRecurrence()
    for turns, rows in zip(_TURNS, _STEPS, strict=True):
        starts, counts = map(list, zip(*rows, strict=True))
        step = _step(ours, list(turns), starts, counts)
        work = _work(bench, sizes, part, len(step.tokens))
        found, expected = work(make(step, ours)), work(TorchRecurrence(step, theirs))
        alike(what, found, expected, bench.limit)
        behind = _step(ours, list(turns), [s + c for s, c in rows], [1] * len(rows))
        left, wanted = (StatePages(behind, pool).read(LAYER, part) for pool in (ours, theirs))
        alike(f"the states behind {what}", left, wanted, bench.limit)
    if not bool((ours.raw[-_SPARE:] == _UNTOUCHED).all()):
        raise WrongError(f"{what}: something was written to pages of no sequence")


def _pool(bench: Bench, sizes: RecurrentSizes) -> PagedKV:
    """A pool for two layers' states, all of whose pages are NaN."""
    parts = [StatePart(CONV, sizes.num_channels, sizes.taps - 1)]
    if sizes.rule:
        height, width = sizes.sizes
        parts.append(StatePart(SSM, sizes.num_heads, height * width, is_float32=True))
    both, number_bytes = [parts, parts], bench.dtype.itemsize
    page_bytes = own_page_bytes(both, number_bytes)
    states = state_layout(both, page_bytes, number_bytes)
    layout = KVLayout((), bench.subject.block_size, page_bytes, states=states)
    num_pages = len(_TURNS[0]) * states.num_pages + _SPARE
    pool = PagedKV.of_layout(num_pages, layout, bench.dtype, bench.device)
    pool.raw.fill_(_UNTOUCHED)
    return pool


def _step(pool: PagedKV, slots: list[int], starts: list[int], counts: list[int]) -> FlatBatch:
    """A step of some slots' tokens; their pages lie apart."""
    num_pages, yes = pool.state_pages, np.ones(len(slots), np.uint8)
    table = np.arange(num_pages * len(slots), dtype=np.int32)[::-1].reshape(num_pages, -1).T
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


def _work(bench: Bench, sizes: RecurrentSizes, part: str, tokens: int) -> Work:
    """One call of random numbers; inputs are parts of wider rows."""
    heads, shared, (height, width) = sizes.num_heads, sizes.num_shared, sizes.sizes
    if part == CONV:
        inputs = bench.normal(tokens, sizes.num_channels + 8)[:, : sizes.num_channels]
        weight, bias = bench.normal(sizes.num_channels, sizes.taps), bench.normal(len(inputs.T))
        convolution = Convolution(inputs, weight, bias, bool(sizes.rule))
        return lambda made: made.convolve(LAYER, convolution)
    if sizes.rule in (HEADS_DECAY, CHANNELS_DECAY):
        query, key = (bench.normal(tokens, shared, height) for _ in range(2))
        shape = (heads, height) if sizes.rule == CHANNELS_DECAY else (heads,)
        decay, beta = -bench.normal(tokens, *shape).float().exp(), bench.normal(tokens, heads)
        rule = DeltaRule(query, key, bench.normal(tokens, heads, width), decay, beta.sigmoid())
        return lambda made: made.delta_rule(LAYER, rule)
    if sizes.rule == SCANS_HEADS:
        inputs, steps = bench.normal(tokens, heads, height), bench.normal(tokens, heads).exp()
        rates, direct = -bench.normal(heads).float().exp(), bench.normal(heads).float()
        write, read = (bench.normal(tokens, shared, width) for _ in range(2))
        scan = Scan(inputs=inputs, steps=steps, rates=rates, write=write, read=read, direct=direct)
        return lambda made: made.chunk_scan(LAYER, scan)
    inputs, steps = bench.normal(tokens, heads), bench.normal(tokens, heads).exp()
    rates, direct = -bench.normal(heads, width).float().exp(), bench.normal(heads).float()
    write, read = bench.normal(tokens, width), bench.normal(tokens, width)
    scan = Scan(inputs=inputs, steps=steps, rates=rates, write=write, read=read, direct=direct)
    return lambda made: made.selective_scan(LAYER, scan)
