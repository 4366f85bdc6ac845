"""Attention within chunks of a sequence, against scores of which the others are hidden."""

from itertools import pairwise

import pytest
import torch

from daemon.engine.kv.pool import PagedKV
from daemon.engine.model.backend import choose_backend, torch_backend
from tests.engine.model.test_backends import batch_of

CPU = torch.device("cpu")
CHUNK, BLOCK_SIZE, HEADS, KV_HEADS, HEAD_DIM = 16, 8, 4, 2, 16
CUTS = (
    [0, 7, 15, 16, 17, 31, 40],  # decodes and chunks of a prompt around the borders
    [0, 1, 2, 3, 4, 5, 6],
    [0, 33, 34, 35, 36, 37, 39],
)
"""Where the steps of each sequence begin and end."""


def expected(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[n, heads, d] of a whole sequence, each query seeing its chunk's keys up to itself."""
    groups = HEADS // KV_HEADS
    keys, values = (states.repeat_interleave(groups, 1) for states in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * 0.3
    at = torch.arange(len(query))
    seen = (at[None] <= at[:, None]) & (at[None] // CHUNK == at[:, None] // CHUNK)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@pytest.mark.parametrize("name", ["torch", "compiled"])
def test_a_query_sees_its_chunk_alone(name: str) -> None:
    torch.manual_seed(0)
    backend = torch_backend() if name == "torch" else choose_backend(CPU, torch.float32)
    lens = [cuts[-1] for cuts in CUTS]
    whole = [torch.randn(length, HEADS + 2 * KV_HEADS, HEAD_DIM) for length in lens]
    split = [states.split((HEADS, KV_HEADS, KV_HEADS), 1) for states in whole]
    exact = [expected(*states) for states in split]
    cache = PagedKV(32, 1, BLOCK_SIZE, KV_HEADS, HEAD_DIM, torch.float32, CPU)
    num_wide = -(-max(lens) // BLOCK_SIZE) * BLOCK_SIZE - 1  # the same tables in each step
    for step in zip(*(pairwise(cuts) for cuts in CUTS), strict=True):
        starts = [start for start, _ in step]
        counts = [end - start for start, end in step]
        batch = batch_of([*starts, num_wide], [*counts, 1], BLOCK_SIZE)
        pieces = [
            [states[start:end] for states in own]
            for own, (start, end) in zip(split, step, strict=True)
        ]
        beside = [torch.zeros(1, *states.shape[1:]) for states in split[0]]
        query, key, value = (torch.cat(part) for part in zip(*pieces, beside, strict=True))
        attend = backend.attend(batch.of_chunks(CHUNK, BLOCK_SIZE), cache)
        found = attend(0, query, key, value, 0.3)[:-1].split(counts)
        for number, (start, end) in enumerate(step):
            torch.testing.assert_close(
                found[number], exact[number][start:end], rtol=1e-4, atol=1e-5
            )
