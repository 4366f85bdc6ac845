"""The part of a decoder's layer after attention: a gated MLP, or a mixture of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from daemon.engine.layers.ops import Activation, Ops

Layer = Callable[[torch.Tensor], torch.Tensor]
"""From states [T, K] to [T, N]."""

_ROUTERS = {"gate", "router"}
"""Names of a router in its block."""

_TRIED = 64
"""Random states with which a router is compared."""


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
class Router:
    """The choice of a token's experts: the k of largest probability, which are their shares."""

    weight: torch.Tensor  # [experts, width]
    num_chosen: int
    to_one: bool  # the shares of a token add up to 1
    bias: torch.Tensor | None = None  # [experts]

    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts int64 [T, k] of `states` [T, width], the likeliest first, and their shares."""
        likely = linear(states, self.weight, self.bias).softmax(-1, torch.float32)
        shares, chosen = likely.topk(self.num_chosen)
        return chosen, shares / shares.sum(-1, keepdim=True) if self.to_one else shares


@dataclass(frozen=True, slots=True)
class Mixture:
    """A block of experts as transformers computes it, its layers prepared for this device."""

    block: Any
    router: Router | None  # where the block is no more than that and its experts

    @property
    def experts(self) -> Any:
        """The module that computes the experts."""
        return self.block.experts

    def products(self) -> list[object]:
        """All modules, those without products too."""
        return list(self.block.modules())

    def __call__(self, states: torch.Tensor, _ops: Ops) -> torch.Tensor:
        """[T, width] of `states` [T, width]."""
        made = self.block(states.unsqueeze(0))
        made = made[0] if isinstance(made, tuple) else made
        return made.view(states.shape)


def is_mixture(block: Any) -> bool:
    """Whether a module has a router and experts, perhaps with others beside them."""
    names = {name for name, _child in block.named_children()}
    return "experts" in names and bool(names & _ROUTERS)


def router_of(block: Any) -> Router | None:
    """The router of a mixture that has nothing else beside its experts; None where a test shows
    that it chooses in another way.
    """
    names = {name for name, _child in block.named_children()} - {"experts"}
    if len(names) > 1:
        return None
    gate = getattr(block, names.pop())
    held = {name for name, _parameter in (*gate.named_parameters(), *gate.named_buffers())}
    usual = held in ({"weight"}, {"weight", "bias"})
    if not usual or not isinstance(getattr(gate, "top_k", None), int):
        return None
    to_one = bool(getattr(gate, "norm_topk_prob", True))
    router = Router(gate.weight, gate.top_k, to_one, gate.bias if "bias" in held else None)
    with torch.inference_mode():
        return router if _same(gate, router) else None


def _same(gate: nn.Module, router: Router) -> bool:
    """Whether a module of transformers chooses as a router does, and in the same shares."""
    weight = router.weight
    states = torch.randn(_TRIED, weight.shape[1], generator=torch.Generator().manual_seed(0))
    states = states.to(weight) * (4 / weight.float().std().clamp_min(1e-6) / weight.shape[1] ** 0.5)
    try:
        said = gate(states)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False  # it takes something else
    chosen, shares = router(states)
    if not isinstance(said, tuple) or len(said) != 3 or said[1].shape != shares.shape:
        return False
    return torch.equal(said[2], chosen) and torch.allclose(said[1].float(), shares, rtol=1e-3)
