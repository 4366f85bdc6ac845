"""The experts of a mixture over quantised weights: each has linear layers of its own.

transformers holds all experts of a layer as two parameters of three sides. Here an expert's weights
stay where and as they are stored, and it computes the tokens that were sent to it.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import silu
from transformers.integrations.moe import _default_apply_gate

from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight

PARAMETERS = {"gate_up_proj": "gate_up", "down_proj": "down"}
"""Parameters of transformers' experts, and the layers that replace them here."""
_WITHOUT_GATE = {"up_proj": "gate_up", "down_proj": "down"}
"""Those of experts that are not gated."""
_BIASES = {f"{name}_bias": layer for name, layer in PARAMETERS.items()}
"""Their biases [experts, rows], where they have any."""
_WHOLE_STEP = "Llama4TextExperts"
"""Experts of which each is given every token, of zeros where it was not sent there."""


_TRIED = 64
"""Random states with which a gate is compared."""


class ExpertLayout(NamedTuple):
    """How transformers' experts of a layer hold their weights."""

    parameters: Mapping[str, str]  # of three sides, and the layers that replace them here
    transposed: bool = False  # an expert's columns are stored as rows
    concatenated: bool = True  # gates and what they gate do not take turns
    every_token: bool = False  # see `SentExperts`


class SiluGate(NamedTuple):
    """silu(first half) * second half."""


class ClampedGate(NamedTuple):
    """gpt-oss's: x * sigmoid(alpha * x) * (up + 1), of gate x and up clamped by a limit."""

    limit: float
    alpha: float

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[T, inner] of `states` [T, 2 * inner], in which gates and ups take turns."""
        gate, up = states[..., ::2].clamp(max=self.limit), states[..., 1::2]
        return gate * torch.sigmoid(gate * self.alpha) * (up.clamp(-self.limit, self.limit) + 1)


Gate = SiluGate | ClampedGate


class QuantisedExperts(nn.Module):
    """The experts of a layer, with its weights taken from `original`, transformers' own."""

    def __init__(self, original: Any, apart: bool = False) -> None:
        """`apart`: gates and what they gate are stored one after the other, not taking turns."""
        super().__init__()
        layout = layout_of(original)
        assert layout is not None, "the caller has asked"
        self.apart = apart and not layout.concatenated
        first, second = layout.parameters
        num_experts, *sides = getattr(original, first).shape
        rows, width = reversed(sides) if layout.transposed else sides
        inner = getattr(original, second).shape[1 if layout.transposed else 2]
        for name in layout.parameters:
            delattr(original, name)
        self.has_bias = getattr(original, "has_bias", False)
        for name in _BIASES if self.has_bias else ():
            self.register_parameter(name, getattr(original, name))
            delattr(original, name)
        self.in_ram: tuple[int, ...] = ()  # experts that the host holds and computes
        # From [T, rows] to [T, inner]; not below this module.
        self.gated: Any = _gate_of(original, first)
        self.exact = True
        self.gate_up = nn.ModuleList(QuantisedLinear(width, rows, None) for _ in range(num_experts))
        self.down = nn.ModuleList(QuantisedLinear(inner, width, None) for _ in range(num_experts))

    @property
    def layers(self) -> list[QuantisedLinear]:
        """All layers."""
        return [*self.gate_up, *self.down]

    @property
    def gate(self) -> Gate | None:
        """The gate between an expert's layers, where it is one of those known here."""
        if getattr(self.gated, "__func__", None) is _default_apply_gate:
            return SiluGate() if is_silu(self.gated.__self__.act_fn) else None
        owner = getattr(self.gated, "__self__", None)
        limit, alpha = (getattr(owner, name, None) for name in ("limit", "alpha"))
        if not isinstance(limit, float) or not isinstance(alpha, float):
            return None
        gate = ClampedGate(limit, alpha)
        states = 2 * limit * torch.randn(_TRIED, 2, generator=torch.Generator().manual_seed(0))
        return gate if torch.allclose(self.gated(states), gate(states)) else None

    def bias(self, layer: str) -> torch.Tensor | None:
        """Biases [experts, rows] of a layer, in the order of its rows; None: it has none."""
        if not self.has_bias:
            return None
        found: torch.Tensor = getattr(self, f"{layer}_proj_bias")
        if self.apart and layer == "gate_up":
            return torch.cat((found[:, ::2], found[:, 1::2]), 1)
        return found

    @property
    def biases(self) -> dict[str, torch.Tensor]:
        """Biases [experts, rows] of each layer that has any, as transformers has them."""
        found = {layer: getattr(self, name) for name, layer in _BIASES.items() if self.has_bias}
        return {layer: rows.detach() for layer, rows in found.items()}

    def set_biases(self, expert: int, rows: Mapping[str, torch.Tensor]) -> None:
        """Give an expert biases, each [rows] as in `biases`."""
        for layer, own in self.biases.items():
            own[expert].copy_(rows[layer])

    def some(self, which: Sequence[int]) -> "QuantisedExperts":
        """These experts alone, over the same weights, with copies of biases where weights lie."""
        twin = copy.copy(self)
        twin.in_ram = ()
        twin._modules = {
            name: nn.ModuleList(layers[expert] for expert in which)
            for name, layers in (("gate_up", self.gate_up), ("down", self.down))
        }
        place = twin.layers[0].weights[0].data.device
        twin._parameters = {
            name: nn.Parameter(rows.detach()[list(which)].to(place), requires_grad=False)
            for name, rows in self._parameters.items()
            if rows is not None
        }
        return twin

    def each(self, states: torch.Tensor, which: torch.Tensor, share: int) -> torch.Tensor:
        """[P, width]: what expert `which` [P] of each of `states` [P, width] makes of it. `share`:
        of the tokens of a step that an expert has on average.
        """
        return self(states, which.unsqueeze(1), states.new_ones(len(states), 1))

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
            inner = self.gated(self._product("gate_up", expert, states[tokens]))
            made[tokens, places] = self._product("down", expert, inner).to(made.dtype)
        return (made * shares.unsqueeze(-1)).sum(1).to(states.dtype)

    def _product(self, layer: str, expert: int, states: torch.Tensor) -> torch.Tensor:
        linear = getattr(self, layer)[expert]
        if expert in self.in_ram:  # a trial's reference; else `DividedExperts` computes
            place = linear.weights[0].data.device
            product: torch.Tensor = linear(states.to(place)).to(states.device)
        else:
            product = linear(states)
        if self.apart and layer == "gate_up":
            product = torch.stack(product.chunk(2, -1), -1).flatten(-2)
        if not self.has_bias:
            return product
        return product + getattr(self, f"{layer}_proj_bias")[expert].to(product.dtype)


class SentExperts(nn.Module):
    """Experts that are given every token, of zeros where it was not sent to one: they compute those
    that were.
    """

    def __init__(self, original: Any, num_chosen: int, apart: bool = False) -> None:
        """`num_chosen`: experts that a token is sent to; `apart`: see `QuantisedExperts`."""
        super().__init__()
        self.each = QuantisedExperts(original, apart)
        self._num_experts, self._num_chosen = len(self.each.gate_up), num_chosen

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[experts * T, width]: the outputs of all experts, one expert's tokens after another's."""
        by_expert = states.view(self._num_experts, -1, states.shape[-1])
        which = by_expert.ne(0).any(-1).int().topk(self._num_chosen, 0).indices  # [chosen, T]
        tokens = torch.arange(by_expert.shape[1], device=states.device)
        rows = (which * len(tokens) + tokens).flatten()
        made = torch.zeros_like(states)
        shares = states.new_ones(len(rows), 1)
        made[rows] = self.each(states[rows], which.reshape(-1, 1), shares)
        return made


def sent(chosen: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each expert among `chosen` [T, k], its tokens, and their places among the k."""
    for expert in chosen.unique().tolist():
        yield expert, *torch.where(chosen == expert)


def stacked(
    layers: Iterable[QuantisedLinear], readable: Callable[[QuantisedWeight], bool]
) -> list[tuple[QuantisedWeight, ...]] | None:
    """The same weight of every expert, for each weight of a layer; None where experts differ, have
    columns in an order of their own, or are not readable.
    """
    columns = list(zip(*(layer.weights for layer in layers), strict=True))
    for weights in columns:
        alike = {(weight.format, weight.shape) for weight in weights}
        ordered = any(weight.order is not None for weight in weights)
        if len(alike) > 1 or ordered or not all(map(readable, weights)):
            return None
    return columns


def put_biases(
    biases: Mapping[str, torch.Tensor | None],
    expert: int,
    given: Mapping[str, torch.Tensor],
    apart: bool,
) -> None:
    """Give an expert biases [rows] of each layer, `given` as transformers has them; `apart`: here
    those of gates are first.
    """
    for layer, own in biases.items():
        if own is not None:
            rows = given[layer].to(own)
            in_turns = apart and layer == "gate_up"
            own[expert] = torch.cat((rows[::2], rows[1::2])) if in_turns else rows


def layout_of(module: Any) -> ExpertLayout | None:
    """How a module holds its experts; None where it has none of a kind that is computed here."""
    held = {name: parameter.ndim for name, parameter in module.named_parameters(recurse=False)}
    every_token = type(module).__name__ == _WHOLE_STEP
    gated = getattr(module, "has_gate", True if every_token else None)
    if gated is None or getattr(module, "has_post_expert_norm", False):
        return None
    parameters = PARAMETERS if gated else _WITHOUT_GATE
    biases = dict.fromkeys(_BIASES, 2) if gated and getattr(module, "has_bias", False) else {}
    if held != dict.fromkeys(parameters, 3) | biases:
        return None
    transposed = getattr(module, "is_transposed", every_token)
    concatenated = getattr(module, "is_concatenated", True)
    return ExpertLayout(parameters, transposed, concatenated, every_token)


def _gate_of(original: Any, first: str) -> Any:
    """The function between an expert's layers; `first`: the first one's parameter."""
    if first not in PARAMETERS:
        return original.act_fn.forward
    own = getattr(original, "_apply_gate", None)
    return own or MethodType(_default_apply_gate, original)


def is_silu(activation: Any) -> bool:
    """Whether an activation of transformers computes x * sigmoid(x)."""
    return activation is silu or type(activation).__name__ in ("SiLU", "SiLUActivation")


def linear_layers(layer: QuantisedLinear | QuantisedExperts) -> list[QuantisedLinear]:
    """A linear layer, or those of experts."""
    return layer.layers if isinstance(layer, QuantisedExperts) else [layer]
