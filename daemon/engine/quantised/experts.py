"""The experts of a mixture over quantised weights: each has linear layers of its own.

transformers holds all experts of a layer as two parameters of three sides. Here an expert's weights
stay where and as they are stored, and it computes the tokens that were sent to it.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu
from transformers.integrations.moe import _default_apply_gate

from daemon.engine.quantised.linear import QuantisedLinear

PARAMETERS = {"gate_up_proj": "gate_up", "down_proj": "down"}
"""Parameters of transformers' experts, and the layers that replace them here."""
_SAID = {
    "has_gate": True,
    "has_bias": False,
    "has_post_expert_norm": False,
    "is_transposed": False,
    "is_concatenated": True,
}
"""Attributes of transformers' experts that `QuantisedExperts` computes alike."""


class QuantisedExperts(nn.Module):
    """The experts of a layer, with its weights taken from `original`, transformers' own."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        num_experts, rows, width = original.gate_up_proj.shape
        inner = original.down_proj.shape[2]
        for name in PARAMETERS:
            delattr(original, name)
        self.gated = original._apply_gate  # from [T, rows] to [T, inner]; not below this module
        self.exact = True
        self.gate_up = nn.ModuleList(QuantisedLinear(width, rows, None) for _ in range(num_experts))
        self.down = nn.ModuleList(QuantisedLinear(inner, width, None) for _ in range(num_experts))

    @property
    def layers(self) -> list[QuantisedLinear]:
        """All layers."""
        return [*self.gate_up, *self.down]

    @property
    def plainly_gated(self) -> bool:
        """Whether an expert computes silu(first half) * second half between its layers."""
        gated = getattr(self.gated, "__func__", None) is _default_apply_gate
        return gated and is_silu(self.gated.__self__.act_fn)

    def prepared(
        self, prepare: Callable[[QuantisedLinear], nn.Module], exact: bool
    ) -> "QuantisedExperts":
        """A copy with the modules that compute its layers here; `exact`: nothing of the model
        rounds.
        """
        twin = copy.copy(self)
        twin._modules = {
            name: nn.ModuleList(prepare(layer) for layer in layers)
            for name, layers in (("gate_up", self.gate_up), ("down", self.down))
        }
        twin.exact = exact
        return twin

    def alike(self, count: int, other: int) -> bool:
        """Whether a token gets the same numbers among `count` tokens as among `other`: its experts
        have other tokens too, so that only the order of sums may differ.
        """
        return count == other or self.exact

    def forward(
        self, states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """[T, width]: the outputs of the experts `chosen` int64 [T, k] for `states` [T, width],
        added in their `shares` [T, k].
        """
        made = states.new_empty(*chosen.shape, states.shape[1])
        for expert, tokens, places in sent(chosen):
            inner = self.gated(self.gate_up[expert](states[tokens]))
            made[tokens, places] = self.down[expert](inner).to(made.dtype)
        return (made * shares.unsqueeze(-1)).sum(1).to(states.dtype)


def sent(chosen: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each expert among `chosen` [T, k], its tokens, and their places among the k."""
    for expert in chosen.unique().tolist():
        yield expert, *torch.where(chosen == expert)


def can_replace(module: Any) -> bool:
    """Whether a module is transformers' experts, of the kind that `QuantisedExperts` computes."""
    held = {name: parameter.ndim for name, parameter in module.named_parameters(recurse=False)}
    said = {name: getattr(module, name, None) for name in _SAID}
    return held == dict.fromkeys(PARAMETERS, 3) and said == _SAID


def is_silu(activation: Any) -> bool:
    """Whether an activation of transformers computes x * sigmoid(x)."""
    return activation is silu or type(activation).__name__ in ("SiLU", "SiLUActivation")


def linear_layers(layer: QuantisedLinear | QuantisedExperts) -> list[QuantisedLinear]:
    """A linear layer, or those of experts."""
    return layer.layers if isinstance(layer, QuantisedExperts) else [layer]
