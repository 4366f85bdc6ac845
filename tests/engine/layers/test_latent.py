"""Attention to latent rows: expanded or absorbed, in any chunks, it is that of keys and values."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.eight_bit import KV_DTYPES
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import AttentionVariant
from daemon.engine.layers.latent import LatentProjection
from daemon.engine.model.backend import Attend, choose_backend, torch_backend
from tests.engine.model.test_backends import batch_of
from tests.soak import tries

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS, NUM_LAYERS, LAYER = 8, 39, 2, 1
TABLES = np.random.default_rng(0).permutation(NUM_BLOCKS).astype(np.int32).reshape(3, -1)
HEADS, OWN, TURNED, VALUE, RANK = 3, 16, 8, 20, 24
SCALE = 0.17
BACKENDS: dict[str, Callable[[], Attend]] = {
    "torch": lambda: torch_backend().attend,
    "compiled": lambda: choose_backend(CPU, torch.float32).attend,
}


def projection() -> LatentProjection:
    torch.manual_seed(2)
    weight = torch.randn(HEADS * (OWN + VALUE), RANK) / RANK**0.5
    return LatentProjection(nn.Parameter(weight, requires_grad=False), HEADS, VALUE, TURNED)


def pool(kv_dtype: torch.dtype | None = None) -> PagedKV:
    """Memory in which whatever is read without having been written is no number."""
    sizes = NUM_BLOCKS, NUM_LAYERS, BLOCK_SIZE, 1, RANK + TURNED
    cache = PagedKV(*sizes, torch.float32, CPU, kv_dtype, latent=RANK)
    if kv_dtype is None:
        cache.blocks.fill_(torch.nan)
    return cache


def plainly(made: LatentProjection, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Attention of a sequence's last queries [n, heads, key_dim] to all its `rows` [m, width]."""
    latent, turned = rows.split((RANK, TURNED), -1)
    both = made(latent).unflatten(-1, (HEADS, OWN + VALUE))
    keys = torch.cat((both[..., :OWN], turned.unsqueeze(1).expand(-1, HEADS, -1)), -1)
    bias = torch.zeros(len(query), len(rows)).masked_fill_(
        ~torch.ones(len(query), len(rows)).tril(len(rows) - len(query)).bool(), -torch.inf
    )
    states = (it.transpose(0, 1) for it in (query, keys, both[..., OWN:]))
    return scaled_dot_product_attention(*states, attn_mask=bias, scale=SCALE).transpose(0, 1)


def steps(lengths: list[int], cuts: list[int]) -> list[tuple[list[int], list[int]]]:
    """Starts and counts of steps that compute sequences of these lengths, cut in turn."""
    starts, found, turn = [0] * len(lengths), [], 0
    while any(start < length for start, length in zip(starts, lengths, strict=True)):
        counts = []
        for start, length in zip(starts, lengths, strict=True):
            counts.append(min(cuts[turn % len(cuts)], length - start))
            turn += 1
        found.append((list(starts), counts))
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return found


def rows_of(some: list[int], starts: list[int], counts: list[int]) -> FlatBatch:
    """The rows of some sequences, each in blocks of its own."""
    batch = batch_of([starts[it] for it in some], [counts[it] for it in some], BLOCK_SIZE)
    rows = np.repeat(np.arange(len(some)), batch.counts)
    blocks = TABLES[some][rows, batch.positions // BLOCK_SIZE].astype(np.int64)
    return replace(batch, block_tables=TABLES[some], blocks=blocks)


def attended(
    attend: Attend, cache: PagedKV, lengths: list[int], cuts: list[int]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """What attention gives for each sequence, its queries and its rows."""
    made = projection()
    variant = AttentionVariant(latent=made)
    queries = [torch.randn(length, HEADS, OWN + TURNED) for length in lengths]
    rows = [torch.randn(length, RANK + TURNED) for length in lengths]
    found: list[list[torch.Tensor]] = [[] for _ in lengths]
    for starts, counts in steps(lengths, cuts):
        some = [index for index, count in enumerate(counts) if count]
        batch = rows_of(some, starts, counts)
        spans = [slice(starts[index], starts[index] + counts[index]) for index in some]
        query = torch.cat([queries[index][span] for index, span in zip(some, spans, strict=True)])
        row = torch.cat([rows[index][span] for index, span in zip(some, spans, strict=True)])
        given_rows = row.unsqueeze(1)
        output = attend(batch, cache)(LAYER, query, given_rows, given_rows, SCALE, variant)
        for index, part in zip(some, output.split([counts[it] for it in some]), strict=True):
            found[index].append(part)
    return [torch.cat(parts) for parts in found], queries, rows


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=tries(25, 400))
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    cuts=st.lists(st.sampled_from([1, 1, 2, 7, 40, 60]), min_size=1, max_size=5),
)
def test_any_chunks_attend_as_to_keys_and_values(
    name: str, lengths: list[int], cuts: list[int]
) -> None:
    torch.manual_seed(1)
    outputs, queries, rows = attended(BACKENDS[name](), pool(), lengths, cuts)
    for output, query, row in zip(outputs, queries, rows, strict=True):
        expected = plainly(projection(), query, row)
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_rows_of_8_bits_are_near(name: str, kv_dtype: str) -> None:
    torch.manual_seed(1)
    cache = pool(KV_DTYPES[kv_dtype])
    outputs, queries, rows = attended(BACKENDS[name](), cache, [50, 9], [11, 1, 24])
    for output, query, row in zip(outputs, queries, rows, strict=True):
        expected = plainly(projection(), query, row)
        assert (output - expected).abs().max() < 0.1 * expected.abs().max()


def test_few_queries_absorb_and_many_expand() -> None:
    made = projection()
    # An absorbing query saves 2 * 24 + 8 - 24 - 20 numbers less; a row costs 24 * 36 more.
    assert not made.expands(24 * 36 // 12) and made.expands(24 * 36 // 12 + 1)


def test_heads_are_expanded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.engine.layers.latent.EXPANDED_NUMBERS", 100 * 2 * (24 + VALUE))
    made = projection()
    assert list(made.heads_at_once(100)) == [slice(0, 2), slice(2, 3)]
    torch.manual_seed(1)
    outputs, queries, rows = attended(torch_backend().attend, pool(), [100], [100])
    expected = plainly(made, queries[0], rows[0])
    torch.testing.assert_close(outputs[0], expected, rtol=1e-4, atol=1e-5)
