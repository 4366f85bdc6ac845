"""Latent attention on the CPU: single-token rows read their pages in place, in a few calls."""

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import calls, latent_kernels
from daemon.engine.cpu.attention import CpuAttention
from daemon.engine.cpu.calls import Constants, Contexts, Places
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.latent_kernels import ABSORBED_AT_ONCE, EMITTED_AT_ONCE
from daemon.engine.cpu.team import Call, Team
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant, PagedAttention
from daemon.engine.layers.attention_torch import Chunks, TorchAttention, attended_shape
from daemon.engine.layers.latent import LatentProjection

_MANY_HEADS = 32
_HEADS_AT_ONCE = 4, 8
"""Heads in one item: of few heads, which threads share, and of `_MANY_HEADS`."""


def can_read(cache: PagedKV) -> bool:
    """Whether these kernels read a pool's rows."""
    return bool(cache.latent) and cache.scales is None and cache.dtype is torch.float32


def cpu_attention(
    batch: FlatBatch, cache: PagedKV, team: Team, constants: Constants
) -> PagedAttention:
    """One step's attention over a pool: of keys and values, or of rows."""
    if not cache.latent:
        return CpuAttention(batch, cache, team, constants)
    if can_read(cache):
        return CpuLatentAttention(batch, cache, team, constants)
    return TorchAttention(batch, cache)


def _rows(projection: LatentProjection) -> tuple[int, ...]:
    own, value_dim = projection.own, projection.value_dim
    return projection.weight.data_ptr(), own, own + value_dim, projection.rank


def absorb(projection: LatentProjection, query: torch.Tensor, output: torch.Tensor) -> Call:
    """`output` [T, heads, rank], dense, of `query` [T, heads, key_dim] whose numbers are dense."""
    count, heads, _ = query.shape
    items = heads * -(-projection.rank // ABSORBED_AT_ONCE)
    address = latent_kernels.absorbed().address
    places = query.data_ptr(), query.stride(0), query.stride(1), count, heads
    return items, BY_ADDRESS, address, *_rows(projection), *places, output.data_ptr()


def emit(projection: LatentProjection, attended: torch.Tensor, output: torch.Tensor) -> Call:
    """`output` [T, heads, value_dim] of means of rows `attended` [T, heads, rank], both dense."""
    count, heads, _ = attended.shape
    items = heads * -(-projection.value_dim // EMITTED_AT_ONCE)
    address = latent_kernels.emitted().address
    places = attended.data_ptr(), count, heads, output.data_ptr()
    return items, BY_ADDRESS, address, *_rows(projection), *places


def attend(
    cache: PagedKV,
    layer: int,
    queries: tuple[torch.Tensor, torch.Tensor],
    contexts: Contexts,
    scale: int,
    output: torch.Tensor,
) -> Call:
    """Means of rows `output` [T, heads, rank], dense, of single-token rows.

    `queries`: absorbed ones [T, heads, rank], dense, and the turned numbers [T, heads, turned] of
    queries, each of which are dense; `scale` is an address.
    """
    absorbed, turned = queries
    heads, rank = absorbed.shape[1:]
    at_once = _HEADS_AT_ONCE[heads >= _MANY_HEADS]
    width = cache.blocks.shape[-1]
    return (
        contexts.num_rows * -(-heads // at_once),
        BY_ADDRESS,
        latent_kernels.attended().address,
        absorbed.data_ptr(),
        turned.data_ptr(),
        turned.stride(0),
        turned.stride(1),
        cache.blocks.data_ptr(),
        cache.row_shift(layer, False) * width,
        cache.blocks.stride(0),
        cache.block_size,
        contexts.tables,
        contexts.width,
        contexts.tokens,
        contexts.lens,
        heads,
        rank,
        turned.shape[2],
        scale,
        output.data_ptr(),
        at_once,
    )


def turn(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Call:
    """Turn neighbouring numbers of `states` [T, heads, n], in place; `cos` [T, n], dense."""
    count, heads, numbers = states.shape
    places = states.data_ptr(), states.stride(0), states.stride(1), count, heads, numbers
    address = latent_kernels.turned().address
    return count, BY_ADDRESS, address, *places, cos.data_ptr(), sin.data_ptr()


class CpuLatentAttention:
    """One step over a batch of float32 states, for a pool of float32 rows."""

    def __init__(self, batch: FlatBatch, cache: PagedKV, team: Team, constants: Constants) -> None:
        self._cache = cache
        self._team = team
        self._constants = constants
        self._chunks = Chunks(batch, cache)
        rows = batch.single_rows
        # Kernels are given addresses: these columns live as long as the step.
        self._columns = (
            batch.blocks.astype(np.int32),
            batch.offsets.astype(np.int32),
            np.ascontiguousarray(batch.block_tables[rows]),
            np.arange(len(rows), dtype=np.int32),
            batch.starts[rows] + np.int32(1),
        )
        blocks, offsets, tables, tokens, lens = self._columns
        self._places = Places.of(blocks, offsets)
        self._contexts = Contexts.of(tables, tokens, lens, len(rows))
        self._tokens = torch.from_numpy(batch.row_offsets[rows].astype(np.int64))

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
        projection = variant.latent
        assert projection is not None, "a pool of rows is read by latent attention alone"
        key = key.contiguous()
        store = calls.store(self._cache, layer, key, key, self._places)
        output = query.new_empty(attended_shape(query, variant))
        if self._contexts.num_rows:
            output[self._tokens] = self._singles(layer, query, store, scale, projection)
        else:
            self._team.run(store)
        self._chunks.attend(layer, query, (key, value), scale, output, variant)
        return output

    def _singles(
        self,
        layer: int,
        query: torch.Tensor,
        store: Call,
        scale: float,
        projection: LatentProjection,
    ) -> torch.Tensor:
        """Rows are stored, and [S, heads, value_dim] is what single-token rows attend to."""
        own = query[self._tokens].contiguous()
        absorbed = own.new_empty(*own.shape[:2], projection.rank)
        means, output = (
            torch.empty_like(absorbed),
            own.new_empty(*own.shape[:2], projection.value_dim),
        )
        queries, address = (absorbed, own[..., projection.own :]), self._constants.address(scale)
        self._team.run_calls(
            [
                store,
                absorb(projection, own, absorbed),
                attend(self._cache, layer, queries, self._contexts, address, means),
                emit(projection, means, output),
            ]
        )
        return output
