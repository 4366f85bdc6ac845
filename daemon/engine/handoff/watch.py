"""Telling a `Sender` of each layer as a step computes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.ops import Angles, Heads, Ops

AfterLayer = Callable[[int], None]


def watched(backend: Backend, after_layer: AfterLayer) -> Backend:
    """A backend that calls `after_layer(layer)` behind each layer's attention.

    Steps that are replayed, compiled or being captured say nothing: they are `Sender.after_step`'s.
    """

    def attend(batch: FlatBatch, cache: KVCache) -> PagedAttention:
        return WatchedAttention(backend.attend(batch, cache), after_layer)

    return replace(backend, attend=attend, ops=WatchedOps(backend.ops, after_layer))


@dataclass(frozen=True, slots=True)
class WatchedAttention:
    """A step's attention where transformers' modules call it."""

    paged: PagedAttention
    after_layer: AfterLayer

    def __call__(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """See `daemon.engine.attention.PagedAttention`."""
        output = self.paged(layer, query, key, value, scale)
        self.after_layer(layer)
        return output


@dataclass(frozen=True, slots=True)
class WatchedOps:
    """A fused decoder's operations."""

    ops: Ops
    after_layer: AfterLayer

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.norm(states, added, weight, epsilon)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """See `Ops`."""
        inner = paged.paged if isinstance(paged, WatchedAttention) else paged
        output = self.ops.attend(inner, layer, projected, heads, angles)
        if not (projected.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.after_layer(layer)
        return output

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.silu_mul(states)
