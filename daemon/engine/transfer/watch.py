"""Notes of each layer to a `Sender`, as a step computes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant, PagedAttention
from daemon.engine.layers.ops import Activation, Angles, Heads, Norm, Ops
from daemon.engine.model.backend import Backend
from daemon.engine.quantised.weight import QuantisedWeight

AfterLayer = Callable[[int], None]


def watched(backend: Backend, after_layer: AfterLayer) -> Backend:
    """A backend that calls `after_layer(layer)` behind each layer's attention of a whole step.

    Replayed, compiled or captured steps, and those computed in parts, make no attention of a whole
    batch here and call nothing: `Sender.after_step` sends their layers.
    """

    def attend(batch: FlatBatch, cache: PagedKV) -> PagedAttention:
        paged = backend.attend(batch, cache)
        return WatchedAttention(paged, after_layer) if batch.whole else paged

    return replace(backend, attend=attend, ops=WatchedOps(backend.ops))


@dataclass(frozen=True, slots=True)
class WatchedAttention:
    """A whole step's attention, as transformers' modules call it."""

    paged: PagedAttention
    after_layer: AfterLayer

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
        output = self.paged(layer, query, key, value, scale, variant)
        self.after_layer(layer)
        return output


@dataclass(frozen=True, slots=True)
class WatchedOps(Ops):
    """A fused decoder's operations."""

    ops: Ops

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        of_added: Norm | None = None,
    ) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.norm(states, added, norm, of_added)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """See `Ops`."""
        if not isinstance(paged, WatchedAttention):
            return self.ops.attend(paged, layer, projected, heads, angles)
        output = self.ops.attend(paged.paged, layer, projected, heads, angles)
        paged.after_layer(layer)
        return output

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.look_up(weight, tokens)

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """See `Ops`."""
        self.ops.norm_heads(states, norm)

    def norm_gated(
        self, values: torch.Tensor, gates: torch.Tensor, norm: Norm, sigmoid: bool = False
    ) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.norm_gated(values, gates, norm, sigmoid)

    def gate_normed(self, values: torch.Tensor, gates: torch.Tensor, norm: Norm) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.gate_normed(values, gates, norm)

    def relu_squared(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.relu_squared(states)

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self.ops.rotate(states, cos, sin)

    def turn_pairs(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        self.ops.turn_pairs(states, cos, sin)

    def activated(self, states: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.activated(states, activation)

    def gelu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.gelu_mul(states)

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return self.ops.silu_mul(states)
