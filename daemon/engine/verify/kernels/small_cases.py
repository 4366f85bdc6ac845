"""The small operations of a layer against torch's."""

import torch

from daemon.engine.cuda import triton as kernels
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.ops import Heads, Norm
from daemon.engine.verify.kernels.bench import LAYER, Bench, contents
from daemon.engine.verify.kernels.compare import alike, equal

_ROWS = (1, 5)
_BLOCKS = [2, 0, -1, 1, 2]
"""Blocks of five tokens' keys and values; below 0: nowhere."""


def try_norms(bench: Bench) -> None:
    """With and without a sum in front; the states are changed too."""
    for rows in _ROWS:
        weight = bench.normal(bench.subject.hidden)
        for with_sum in (True, False):
            states = bench.normal(rows, bench.subject.hidden)
            added = bench.normal(rows, bench.subject.hidden) if with_sum else None
            expected = states.clone()
            found = kernels.add_norm(states, added, weight, 1e-5)
            what = f"the norm of {rows} rows"
            wanted = reference.add_norm(expected, added, weight, 1e-5)
            alike(what, found, wanted, bench.limit)
            alike(f"the sum in front of {what}", states, expected, bench.limit)


def try_activations(bench: Bench) -> None:
    """silu(gate) * up, and gelu's."""
    for rows in _ROWS:
        states = bench.normal(rows, 2 * bench.subject.gated)
        found = kernels.silu_mul(states)
        alike(f"silu of {rows} rows", found, reference.silu_mul(states), bench.limit)
        found = kernels.gelu_mul(states)
        alike(f"gelu of {rows} rows", found, reference.gelu_mul(states), bench.limit)


def try_qkv(bench: Bench) -> None:
    """Queries as they are turned, and what is in the pool afterwards; torch does both for latent
    rows.
    """
    if bench.subject.latent:
        return
    subject, tokens = bench.subject, len(_BLOCKS)
    heads = subject.num_heads + 2 * subject.num_kv_heads
    found = bench.normal(tokens, heads, subject.head_dim)
    expected = found.clone()
    angles = bench.normal(tokens, subject.rotary_dim // 2).float().repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    norms = [Norm(bench.normal(subject.head_dim), 1e-6) for _ in range(2 * subject.head_norms)]
    sizes = Heads(subject.num_heads, subject.num_kv_heads, subject.head_dim, 1.0, *norms)
    ours, theirs = bench.pool(4), bench.pool(4)
    slots = _slots(bench)
    kernels.place(found, cos, sin, ours.blocks, ours.scales, LAYER, *slots, sizes)
    reference.place(expected, cos, sin, theirs.blocks, theirs.scales, LAYER, *slots, sizes)
    queries = slice(0, subject.num_heads)
    alike("queries", found[:, queries], expected[:, queries], bench.limit)
    _same_pools(bench, ours, theirs)


def try_writes(bench: Bench) -> None:
    """Keys and values that are slices of one projection, as they come; torch writes latent rows."""
    if bench.subject.latent:
        return
    subject, tokens = bench.subject, len(_BLOCKS)
    states = bench.normal(tokens, 2 * subject.num_kv_heads, subject.head_dim)
    key, value = states.split(subject.num_kv_heads, 1)
    ours, theirs = bench.pool(4), bench.pool(4)
    slots = _slots(bench)
    kernels.write_kv(key, value, ours.blocks, LAYER, *slots, ours.scales)
    reference.write_kv(key, value, theirs.blocks, LAYER, *slots, theirs.scales)
    _same_pools(bench, ours, theirs)


def _slots(bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = [0, 5, bench.subject.block_size - 1, 1, 2]
    return bench.column(_BLOCKS), bench.column(offsets)


def _same_pools(bench: Bench, ours: PagedKV, theirs: PagedKV) -> None:
    """A number between two steps of an 8-bit type may go to either."""
    limit = bench.limit if ours.scales is None else 2e-2
    found, expected = contents(ours), contents(theirs)
    alike("keys and values", found, expected, limit)
    equal("what is not written", found[:, 1 - LAYER], expected[:, 1 - LAYER])
