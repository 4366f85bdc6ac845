"""Kimi's delta attention in a fused decoder's layer, in place of attention (Kimi Team 2025, §4)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.children import child_names
from daemon.engine.layers.mlp import Layer, Prepare
from daemon.engine.layers.ops import Angles, Norm, Ops
from daemon.engine.layers.recurrent.functions import current_recurrence
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule
from daemon.engine.quantised.linear import QuantisedLinear

_HEADS = ("q_proj", "k_proj", "v_proj")
_DECAYS = ("f_a_proj", "f_b_proj")
"""The two steps to the decays of channels, within the gate that forgets."""
_OTHERS = ("g_a_proj", "g_b_proj", "b_proj", "conv1d", "forget_gate", "o_norm", "o_proj")
GATE_WEIGHTS = frozenset({"dt_bias", "A_log"})
"""Weights of the gate that forgets beside its layers'."""


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """The net behind a layer's first projection [T, 3 * width + 2 * rank + heads]: queries, keys
    and values before their convolution, inner states of decays and of gates, and of each head what
    its beta is made of.
    """

    num_heads: int
    head_dim: int
    taps: torch.Tensor  # [3 * width, K] of the convolution
    bias: torch.Tensor | None  # [3 * width]
    rank: int  # of inner states
    to_decays: Layer  # from inner states to [T, width]
    to_gates: Layer
    rates: torch.Tensor  # float32 [heads], below 0
    step_bias: torch.Tensor  # float32 [width]
    norm: Norm  # of each head's values, before their gates

    @property
    def width(self) -> int:
        """Numbers of a token that the net gives."""
        return self.num_heads * self.head_dim

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The parts of a token in the first projection."""
        return len(self.taps), self.rank, self.rank, self.num_heads

    def norms(self) -> list[Norm]:
        """Every norm."""
        return [self.norm]

    def products(self) -> list[object]:
        """Matrix products between the first projection and the net."""
        return [self.to_decays, self.to_gates]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        held = self.taps, self.bias, self.rates, self.step_bias
        return [tensor for tensor in held if tensor is not None]

    def split(self, convolved: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values [T, heads, n] of channels [T, 3 * width]."""
        heads = self.num_heads, self.head_dim
        return [part.unflatten(1, heads) for part in convolved.chunk(3, 1)]

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """The values [T, width] that the net reads, normed and gated, from a first projection. It
        reads and writes its sequences' states.
        """
        recurrence = current_recurrence()
        channels, of_decays, of_gates, betas = projected.split(self.sizes, 1)
        convolution = Convolution.over(channels, self.taps, self.bias, activated=True)
        query, key, value = self.split(recurrence.convolve(layer, convolution))
        steps = softplus(self.to_decays(of_decays.contiguous()).float() + self.step_bias)
        decay = self.rates.unsqueeze(1) * steps.view(value.shape)
        rule = DeltaRule(query, key, value, decay, betas.sigmoid())
        gates = self.to_gates(of_gates.contiguous())
        return ops.norm_gated(recurrence.delta_rule(layer, rule), gates, self.norm, sigmoid=True)


def is_forget_gate(module: Any) -> bool:
    """Whether a module of transformers has the parts of the gate that forgets."""
    return child_names(module) == set(_DECAYS)


def is_kimi_delta(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a net."""
    if child_names(module) != {*_HEADS, *_OTHERS} or not is_forget_gate(module.forget_gate):
        return False
    gate, second = module.forget_gate, (module.g_b_proj, module.forget_gate.f_b_proj)
    own = {name for name, _parameter in gate.named_parameters(recurse=False)}
    return (
        own == GATE_WEIGHTS
        and isinstance(module.conv1d, nn.Conv1d)
        and module.activation in ("silu", "swish")
        and getattr(module.o_norm, "activation", "") == "sigmoid"
        and {name for name, _ in module.o_norm.named_parameters()} == {"weight"}
        and len(module.o_norm.weight) == module.head_dim
        and len({layer.in_features for layer in second}) == 1
        and all(type(layer) in (nn.Linear, QuantisedLinear) for layer in second)
    )


def projections_of(net: Any) -> list[Any]:
    """The layers of a net that become its first projection."""
    heads = [getattr(net, name) for name in _HEADS]
    return [*heads, net.forget_gate.f_a_proj, net.g_a_proj, net.b_proj]


def kimi_delta(net: Any, prepare: Prepare) -> KimiDelta:
    """The net that a module of transformers is."""
    gate = net.forget_gate
    return KimiDelta(
        num_heads=net.num_heads,
        head_dim=net.head_dim,
        taps=net.conv1d.weight.detach().squeeze(1).contiguous(),
        bias=None if net.conv1d.bias is None else net.conv1d.bias.detach(),
        rank=gate.f_b_proj.in_features,
        to_decays=prepare(gate.f_b_proj),
        to_gates=prepare(net.g_b_proj),
        rates=-gate.A_log.detach().flatten().float().exp(),
        step_bias=gate.dt_bias.detach().float(),
        norm=Norm(net.o_norm.weight, net.o_norm.variance_epsilon),
    )
