"""The part of a decoder's layer after attention: an MLP, or a mixture of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from daemon.engine.layers.ops import Activation, Ops
from daemon.engine.layers.routers import Router

Layer = Callable[[torch.Tensor], torch.Tensor]
"""From states [T, K] to [T, N]."""

Prepare = Callable[[Any], Any]
"""Turns a linear layer, or the experts of a mixture, into the module that computes it here."""


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Two products with an activation between them."""

    gate_up: Layer  # to gates and what they gate, or without gates
    down: Layer
    activation: Activation = Activation.SILU
    factors: torch.Tensor | None = None  # float32, of what the first product gives
    scale: float = 1.0  # of what the second gives

    def products(self) -> list[object]:
        """Its matrix products."""
        return [self.gate_up, self.down]

    def __call__(self, states: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, width] of `states` [T, width]."""
        wide = self.gate_up(states)
        if self.factors is not None:
            wide = wide * self.factors.to(wide.dtype)
        made = self.down(ops.activated(wide, self.activation))
        return made if self.scale == 1.0 else made * self.scale


@dataclass(frozen=True, slots=True)
class Mixture:
    """A block of experts, its layers prepared for this device.

    Where its router is known it is computed here; else `block`, transformers' own, computes all but
    what its layer adds to it.
    """

    experts: Any  # the module that computes them
    router: Router | None = None
    shared: DenseMlp | None = None  # an MLP that every token takes, and is added
    shared_share: Layer | None = None  # whose share is the sigmoid of this layer's output [T, 1]
    block: Any = None

    def products(self) -> list[object]:
        """All modules, those without products too."""
        shared = self.shared.products() if self.shared else []
        own = self.experts if self.block is None else self.block
        return [*own.modules(), *shared, *filter(None, [self.shared_share])]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product."""
        router = None if self.block is not None else self.router
        held = (router.weight, router.bias, router.correction) if router else ()
        return [tensor for tensor in held if tensor is not None]

    def __call__(self, states: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, width] of `states` [T, width]."""
        made = self._of_experts(states)
        if self.shared is None:
            return made
        beside = self.shared(states, ops)
        share = self.shared_share
        return made + (beside if share is None else share(states).sigmoid() * beside)

    def _of_experts(self, states: torch.Tensor) -> torch.Tensor:
        if self.block is None:
            assert self.router is not None
            made: torch.Tensor = self.experts(states, *self.router(states))
            return made
        whole = self.block(states.unsqueeze(0))
        whole = whole[0] if isinstance(whole, tuple) else whole
        found: torch.Tensor = whole.view(states.shape)
        return found
