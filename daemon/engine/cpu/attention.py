"""Paged attention on the CPU: single-token rows read their pages in place."""

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import Constants, Contexts, Places
from daemon.engine.cpu.team import Team
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.layers.attention_torch import Chunks

_STORED_HERE = 32
"""Most tokens whose keys and values the calling thread stores faster alone."""


class CpuAttention:
    """One step over a batch of float32 states, for a pool of float32 or 8-bit numbers."""

    def __init__(self, batch: FlatBatch, cache: PagedKV, team: Team, constants: Constants) -> None:
        self._cache = cache
        self._team = team
        self._constants = constants
        self._chunks = Chunks(batch, cache)
        self.batch = batch
        rows = batch.single_rows
        # Kernels are given addresses: these columns live as long as the step.
        self._columns = (
            batch.blocks.astype(np.int32),
            batch.offsets.astype(np.int32),
            np.ascontiguousarray(batch.block_tables[rows]),
            batch.row_offsets[rows],
            batch.starts[rows] + np.int32(1),
        )
        blocks, offsets, tables, tokens, lens = self._columns
        self._places = Places.of(blocks, offsets)
        self._contexts = Contexts.of(tables, tokens, lens, len(rows))

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        variant: AttentionVariant = FULL,
    ) -> torch.Tensor:
        """See `daemon.engine.layers.attention.PagedAttention`."""
        query, key, value = (_rows_of_heads(states) for states in (query, key, value))
        if not variant.shared:
            self._store(layer, key, value)
        output = torch.empty(query.shape, dtype=query.dtype)
        if self._contexts.num_rows:
            address = self._constants.address(scale, variant.cap)
            place = self._cache, layer, query, self._contexts
            self._team.run(calls.attend(*place, address, output, variant))
        self._chunks.attend(layer, query, (key, value), scale, output, variant)
        return output

    def _store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        run = self._team.run_here if len(key) <= _STORED_HERE else self._team.run
        run(calls.store(self._cache, layer, key, value, self._places))


def _rows_of_heads(states: torch.Tensor) -> torch.Tensor:
    """[T, heads, head_dim] whose heads lie next to each other; rows may be apart."""
    if states.stride(2) == 1 and states.stride(1) == states.shape[2]:
        return states
    return states.contiguous()
