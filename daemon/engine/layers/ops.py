"""The operations of a fused decoder between its matrix products, in plain torch."""

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch.nn.functional import gelu, relu, rms_norm, silu

from daemon.engine.layers.attention import FULL, AttentionVariant, PagedAttention
from daemon.engine.quantised.weight import QuantisedWeight

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosine and sine of T tokens' angles, float32 [T, rotary_dim] each; both halves are alike."""


class Activation(Enum):
    """The function between an MLP's two products: of the first half of states, their gates, or of
    all where there are none.
    """

    SILU = "x * sigmoid(x)"
    GELU = "gelu, as approximated by tanh"
    RELU_SQUARED = "max(x, 0) ** 2, without gates"

    def width(self, states: int) -> int:
        """Numbers of a token that it makes of so many states."""
        return states if self is Activation.RELU_SQUARED else states // 2


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm's parameters; a weight that is wider than the states is multiplied before they
    are rounded.
    """

    weight: torch.Tensor
    epsilon: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., width], normed."""
        if self.weight.dtype == states.dtype:
            return rms_norm(states, self.weight.shape, self.weight, self.epsilon)
        wide = rms_norm(states.to(self.weight.dtype), self.weight.shape, self.weight, self.epsilon)
        return wide.to(states.dtype)


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer's merged projection [T, heads + 2 * kv_heads, head_dim], and its scale.

    The norms are over each head, where the model has them. Where heads are gated, each query is
    followed by its gate: what the head gives is multiplied by the sigmoid of that.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    variant: AttentionVariant = field(default=FULL, kw_only=True)
    gated: bool = field(default=False, kw_only=True)

    @property
    def sizes(self) -> tuple[int, int]:
        """The parts of a token in the projection: queries and gates; keys and values."""
        return (1 + self.gated) * self.width, 2 * self.num_kv_heads * self.head_dim

    @property
    def width(self) -> int:
        """Numbers of a token that attention gives."""
        return self.num_heads * self.head_dim

    def norms(self) -> list[Norm]:
        """Every norm."""
        norms = self.query_norm, self.key_norm, self.value_norm
        return [norm for norm in norms if norm is not None]

    def products(self) -> list[object]:
        """Matrix products between the first projection and attention: none."""
        return []

    def attend(
        self,
        ops: "Ops",
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """Attention from a first projection, changed here; see `Ops.attend`."""
        if not self.gated:
            return ops.attend(paged, layer, projected, self, angles)
        first, rest = projected.split(self.sizes, 1)
        query, gate = first.unflatten(1, (self.num_heads, 2, self.head_dim)).unbind(2)
        together = torch.cat((query.flatten(1), rest), 1)
        return ops.attend(paged, layer, together, self, angles) * gate.flatten(1).sigmoid()


class Ops:
    """The small operations, for every device and dtype; other classes replace some, faster.

    States are rows of T tokens, and may be changed where said.
    """

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        of_added: Norm | None = None,
    ) -> torch.Tensor:
        """`states` [T, width] += `added`, then its RMS norm, as a new tensor.

        With `of_added` it is the norm of `added` that is added.
        """
        if added is not None:
            states += added if of_added is None else self.norm(added, None, of_added)
        return norm(states)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """Attention from a merged projection [T, (heads + 2 * kv_heads) * head_dim], changed here.

        Norms and turns queries and keys, norms values, writes keys and values to the pool, and
        attends. Returns [T, heads * head_dim].
        """
        num_heads, num_kv_heads = heads.num_heads, heads.num_kv_heads
        projected = projected.view(-1, num_heads + 2 * num_kv_heads, heads.head_dim)
        query, key, value = projected.split((num_heads, num_kv_heads, num_kv_heads), 1)
        norms = heads.query_norm, heads.key_norm, heads.value_norm
        for part, norm in zip((query, key, value), norms, strict=True):
            if norm is not None:
                self.norm_heads(part, norm)
        # Queries and keys lie next to each other and turn by the same angles.
        self.rotate(projected[:, : num_heads + num_kv_heads], *angles)
        return paged(layer, query, key, value, heads.scale, heads.variant).flatten(1)

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """Rows float32 [T, K] of a weight, `tokens` int64 [T]."""
        return weight.pick(tokens).numbers()

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """RMS norm of each head of `states` [T, heads, head_dim], in place."""
        states.copy_(norm(states))

    def norm_gated(
        self, values: torch.Tensor, gates: torch.Tensor, norm: Norm, sigmoid: bool = False
    ) -> torch.Tensor:
        """`values` [T, heads, n], each head's RMS norm times silu of its `gates` [T, heads * n], or
        their `sigmoid`; [T, heads * n].
        """
        normed = rms_norm(values.float(), values.shape[-1:], None, norm.epsilon)
        if sigmoid:  # its weight is not rounded, as Kimi's code has it
            opened = gates.float().sigmoid().view(values.shape)
            return (norm.weight.float() * normed * opened).to(values.dtype).flatten(1)
        weight, opened = norm.weight.to(values.dtype), silu(gates.float()).view(values.shape)
        return (weight * normed.to(values.dtype) * opened).to(values.dtype).flatten(1)

    def gate_normed(self, values: torch.Tensor, gates: torch.Tensor, norm: Norm) -> torch.Tensor:
        """`values` [T, groups, n] times silu of their `gates` [T, groups * n], then each group's
        RMS norm by its part of the weight; [T, groups * n], as `gates`.
        """
        opened = silu(gates.float()).view(values.shape)
        normed = rms_norm(values.float() * opened, values.shape[-1:], None, norm.epsilon)
        return (norm.weight * normed.flatten(1)).to(gates.dtype)

    def relu_squared(self, states: torch.Tensor) -> torch.Tensor:
        """max(x, 0) ** 2 of each number of `states` [T, width]."""
        return relu(states).square()

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary positions of `states` [T, heads, head_dim], in place; `cos` [T, rotary_dim]."""
        rotated = states[..., : cos.shape[-1]]
        low, high = rotated.chunk(2, -1)
        turned = torch.cat((-high, low), -1)
        rotated.copy_(rotated * cos.unsqueeze(1) + turned * sin.unsqueeze(1))

    def turn_pairs(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary positions of `states` [T, heads, n], in place, where neighbours are a pair; `cos`
        [T, n], both of whose halves have an angle for each pair.
        """
        cos, sin = (part[:, None, : part.shape[1] // 2] for part in (cos, sin))
        first, second = states[..., 0::2], states[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1)
        states.copy_(turned.flatten(-2))

    def activated(self, states: torch.Tensor, activation: Activation) -> torch.Tensor:
        """The activation of `states` [T, width], or of the first half * second half of `states`
        [T, 2 * width].
        """
        if activation is Activation.RELU_SQUARED:
            return self.relu_squared(states)
        return self.silu_mul(states) if activation is Activation.SILU else self.gelu_mul(states)

    def gelu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """`Activation.GELU` of the first half * second half of `states` [T, 2 * width]."""
        gate, up = states.chunk(2, -1)
        return gelu(gate, approximate="tanh") * up

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of `states` [T, 2 * width]."""
        gate, up = states.chunk(2, -1)
        return silu(gate) * up
