"""A decoder of the usual kind, computed straight: no wrappers, merged projections, fused steps.

Pre-norm, rotary positions, gated MLP: Llama, Mistral, Qwen and their like. `fuse` makes one from
a loaded model and proves on the spot that it computes the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from daemon.engine.attention import PagedAttention
from daemon.engine.ops import Ops

Layer = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's parameters."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; `query_norm` and `key_norm` are over each head, where the model has them."""

    input_norm: Norm
    query_key_value: Layer
    query_norm: Norm | None
    key_norm: Norm | None
    output: Layer
    mlp_norm: Norm
    gate_up: Layer
    down: Layer


@dataclass(frozen=True, slots=True)
class Decoder:
    """All layers, and the sizes that they share."""

    embeddings: torch.Tensor
    rotary: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Layer
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    ops: Ops

    def products(self) -> list[Layer]:
        """Every matrix product."""
        per_layer = [(la.query_key_value, la.output, la.gate_up, la.down) for la in self.layers]
        return [*(product for layer in per_layer for product in layer), self.head]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product: embeddings and norms."""
        norms = [self.norm]
        for layer in self.layers:
            norms += [layer.input_norm, layer.mlp_norm]
            norms += [norm for norm in (layer.query_norm, layer.key_norm) if norm is not None]
        return [self.embeddings, *(norm.weight for norm in norms)]

    def logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        sampled: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """`tokens`, `positions` int64 [T]; `sampled` int64 [R] indexes them. Returns [R, vocab]."""
        states = embedding(tokens, self.embeddings)
        cos, sin = (part[0].contiguous() for part in self.rotary(states, positions.unsqueeze(0)))
        added = None
        for index, layer in enumerate(self.layers):
            normed = self._norm(states, added, layer.input_norm)
            attended = self._attend(index, layer, normed, (cos, sin), paged)
            normed = self._norm(states, layer.output(attended), layer.mlp_norm)
            added = layer.down(self.ops.silu_mul(layer.gate_up(normed)))
        if len(sampled) < len(tokens):
            states, added = states[sampled], added if added is None else added[sampled]
        return self.head(self._norm(states, added, self.norm))

    def _attend(
        self,
        index: int,
        layer: DecoderLayer,
        states: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        paged: PagedAttention,
    ) -> torch.Tensor:
        """Attention of one layer, before its output projection: [T, heads * head_dim]."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        projected = layer.query_key_value(states)
        projected = projected.view(-1, heads + 2 * kv_heads, self.head_dim)
        query, key, value = projected.split((heads, kv_heads, kv_heads), 1)
        for part, norm in ((query, layer.query_norm), (key, layer.key_norm)):
            if norm is not None:
                self.ops.norm_heads(part, norm.weight, norm.epsilon)
        # Queries and keys lie next to each other and turn by the same angles.
        self.ops.rotate(projected[:, : heads + kv_heads], *angles)
        return paged(index, query, key, value, self.scale).flatten(1)

    def _norm(self, states: torch.Tensor, added: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        return self.ops.norm(states, added, norm.weight, norm.epsilon)
