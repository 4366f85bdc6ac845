"""The operations of a fused decoder between its matrix products, in plain torch."""

from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm, silu

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.quantised.weight import QuantisedWeight

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine of T tokens' angles, float32 [T, rotary_dim] each; both halves are alike."""


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's parameters."""

    weight: torch.Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer's merged projection [T, heads + 2 * kv_heads, head_dim], and its scale.

    The norms are over each head, where the model has them.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    query_norm: Norm | None = None
    key_norm: Norm | None = None


class Ops:
    """The small operations, for every device and dtype; other classes replace some, faster.

    States are rows of T tokens, and may be changed where said.
    """

    def norm(self, states: torch.Tensor, added: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        """`states` [T, width] += `added`, then its RMS norm, as a new tensor."""
        if added is not None:
            states += added
        return rms_norm(states, norm.weight.shape, norm.weight, norm.epsilon)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """Attention from a merged projection [T, (heads + 2 * kv_heads) * head_dim], changed here.

        Norms and turns queries and keys, writes keys and values to the pool, and attends. Returns
        [T, heads * head_dim].
        """
        num_heads, num_kv_heads = heads.num_heads, heads.num_kv_heads
        projected = projected.view(-1, num_heads + 2 * num_kv_heads, heads.head_dim)
        query, key, value = projected.split((num_heads, num_kv_heads, num_kv_heads), 1)
        for part, norm in ((query, heads.query_norm), (key, heads.key_norm)):
            if norm is not None:
                self.norm_heads(part, norm)
        # Queries and keys lie next to each other and turn by the same angles.
        self.rotate(projected[:, : num_heads + num_kv_heads], *angles)
        return paged(layer, query, key, value, heads.scale).flatten(1)

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """Rows float32 [T, K] of a weight, `tokens` int64 [T]."""
        return weight.pick(tokens).numbers()

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """RMS norm of each head of `states` [T, heads, head_dim], in place."""
        states.copy_(rms_norm(states, norm.weight.shape, norm.weight, norm.epsilon))

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary positions of `states` [T, heads, head_dim], in place; `cos` [T, rotary_dim]."""
        rotated = states[..., : cos.shape[-1]]
        low, high = rotated.chunk(2, -1)
        turned = torch.cat((-high, low), -1)
        rotated.copy_(rotated * cos.unsqueeze(1) + turned * sin.unsqueeze(1))

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of `states` [T, 2 * width]."""
        gate, up = states.chunk(2, -1)
        return silu(gate) * up
