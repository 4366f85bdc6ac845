"""Watches how a model attends, the first time that it computes: what a KV cache must know of it.

Every layer of the shape attends exactly once, with the heads that the cache has room for. A model
that does otherwise is refused before anything is written: kernels write where the shape says.
"""

from collections import Counter

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.backend import Attend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.models.shape import ModelError


class Witness:
    """Attention as `inner` computes it, seen layer by layer."""

    def __init__(self, inner: Attend) -> None:
        self._inner = inner
        self._calls: Counter[int] = Counter()

    def attend(self, batch: FlatBatch, cache: KVCache) -> PagedAttention:
        """See `daemon.engine.backend.Attend`. What it gives raises ModelError."""
        paged = self._inner(batch, cache)
        num_heads, head_dim = cache.blocks.shape[-2:]

        def watched(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            scale: float,
        ) -> torch.Tensor:
            for states, what in ((key, "keys"), (value, "values")):
                if states.shape[1:] != (num_heads, head_dim):
                    found = f"{states.shape[1]} heads of {states.shape[2]} for its {what}"
                    said = f"its configuration says {num_heads} of {head_dim}"
                    raise ModelError(f"its attention has {found}, {said}")
            if query.shape[2] != head_dim or query.shape[1] % num_heads:
                found = f"{query.shape[1]} heads of {query.shape[2]} for its queries"
                raise ModelError(f"its attention has {found}, which share {num_heads} of keys")
            if not 0 <= layer < cache.num_layers:
                raise ModelError(
                    f"its layer {layer} attends, its configuration says {cache.num_layers} layers"
                )
            self._calls[layer] += 1
            return paged(layer, query, key, value, scale)

        return watched

    def require_each_layer_once(self, num_layers: int) -> None:
        """Raise ModelError unless each of the layers has attended once."""
        for layer in range(num_layers):
            if self._calls[layer] != 1:
                count = self._calls[layer]
                raise ModelError(f"its layer {layer} attends {count} times, not once")
