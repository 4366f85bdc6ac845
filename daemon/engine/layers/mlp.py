"""The part of a decoder's layer after attention: a gated MLP, or a mixture of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from daemon.engine.layers.ops import Activation, Ops
from daemon.engine.layers.routers import Router

Layer = Callable[[torch.Tensor], torch.Tensor]
"""From states [T, K] to [T, N]."""


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Two products with a gate between them."""

    gate_up: Layer
    down: Layer
    activation: Activation = Activation.SILU

    def products(self) -> list[object]:
        """Its matrix products."""
        return [self.gate_up, self.down]

    def __call__(self, states: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, width] of `states` [T, width]."""
        return self.down(ops.gated(self.gate_up(states), self.activation))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A block of experts, its layers prepared for this device.

    Where its router is known it is computed here; else `block`, transformers' own, computes all.
    """

    experts: Any  # the module that computes them
    router: Router | None = None
    shared: GatedMlp | None = None  # an MLP that every token takes, and is added
    shared_share: Layer | None = None  # whose share is the sigmoid of this layer's output [T, 1]
    block: Any = None

    def products(self) -> list[object]:
        """All modules, those without products too."""
        if self.block is not None:
            return list(self.block.modules())
        shared = self.shared.products() if self.shared else []
        return [*self.experts.modules(), *shared, *filter(None, [self.shared_share])]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product."""
        router = None if self.block is not None else self.router
        held = (router.weight, router.bias, router.correction) if router else ()
        return [tensor for tensor in held if tensor is not None]

    def __call__(self, states: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, width] of `states` [T, width]."""
        if self.block is not None:
            made = self.block(states.unsqueeze(0))
            made = made[0] if isinstance(made, tuple) else made
            return made.view(states.shape)
        assert self.router is not None
        made = self.experts(states, *self.router(states))
        if self.shared is None:
            return made
        beside = self.shared(states, ops)
        share = self.shared_share
        return made + (beside if share is None else share(states).sigmoid() * beside)
