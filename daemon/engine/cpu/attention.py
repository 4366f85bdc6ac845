"""Paged attention on the CPU: single-token rows read their pages in place."""

import numpy as np
import torch

from daemon.engine.attention_torch import Chunks
from daemon.engine.cpu import kernels
from daemon.engine.cpu.team import Team, run_here
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch

_STORED_HERE = 32
"""Up to so many tokens the calling thread stores keys and values faster alone."""


class CpuAttention:
    """One step over a batch, for a float32 pool."""

    def __init__(self, batch: FlatBatch, cache: KVCache, team: Team) -> None:
        self._cache = cache
        self._team = team
        self._chunks = Chunks(batch, cache)
        self._num_tokens = len(batch.tokens)
        self._blocks = batch.blocks.astype(np.int32)
        self._offsets = batch.offsets.astype(np.int32)
        rows = batch.single_rows
        self._num_singles = len(rows)
        self._tables = np.ascontiguousarray(batch.block_tables[rows])
        self._tokens = batch.row_offsets[rows]
        self._lens = batch.starts[rows] + np.int32(1)
        self._scale = np.zeros(1, np.float32)
        self._pool = cache.blocks.data_ptr()
        # Reading an array's address costs more than a kernel's call, so each is read once a step.
        columns = (self._blocks, self._offsets, self._tables, self._tokens, self._lens, self._scale)
        self._addresses = [column.ctypes.data for column in columns]

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See `daemon.engine.attention.PagedAttention`."""
        query, key, value = (_rows_of_heads(states) for states in (query, key, value))
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        self._store(layer, key, value)
        output = torch.empty(query.shape, dtype=query.dtype)
        if self._num_singles:
            self._attend_singles(layer, query, scale, output)
        self._chunks.attend(layer, (query, key, value), scale, output)
        return output

    def _store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        width = key.shape[1] * key.shape[2]
        blocks, offsets, *_ = self._addresses
        run = run_here if self._num_tokens <= _STORED_HERE else self._team.run
        run(
            kernels.store,
            key.data_ptr(),
            value.data_ptr(),
            key.stride(0),
            self._pool,
            self._cache.row_shift(layer, False) * width,
            self._cache.blocks.stride(0),
            self._cache.block_size,
            blocks,
            offsets,
            self._num_tokens,
            width,
        )

    def _attend_singles(
        self, layer: int, query: torch.Tensor, scale: float, output: torch.Tensor
    ) -> None:
        num_kv_heads, head_dim = self._cache.blocks.shape[4:]
        *_, tables, tokens, lens, scale_address = self._addresses
        self._scale[0] = scale
        self._team.run(
            kernels.decode_attention,
            query.data_ptr(),
            query.stride(0),
            self._pool,
            self._cache.row_shift(layer, False) * num_kv_heads * head_dim,
            self._cache.blocks.stride(0),
            self._cache.block_size,
            tables,
            self._tables.shape[1],
            tokens,
            lens,
            self._num_singles,
            num_kv_heads,
            query.shape[1] // num_kv_heads,
            head_dim,
            scale_address,
            output.data_ptr(),
        )


def _rows_of_heads(states: torch.Tensor) -> torch.Tensor:
    """[T, heads, head_dim] whose heads lie next to each other; rows may be apart."""
    if states.stride(2) == 1 and states.stride(1) == states.shape[2]:
        return states
    return states.contiguous()
