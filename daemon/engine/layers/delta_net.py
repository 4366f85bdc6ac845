"""The gated delta net of a fused decoder's layer, in place of attention (Qwen3.5, Qwen3-Next)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.children import child_names
from daemon.engine.layers.ops import Angles, Norm, Ops
from daemon.engine.layers.recurrent.functions import current_recurrence
from daemon.engine.layers.recurrent.recurrence import Convolution, DeltaRule

_PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Layers of the same states that become one, in the order of its rows."""
_WOVEN = ("in_proj_qkvz", "in_proj_ba")
"""Those of Qwen3-Next, each of whose heads of keys has all its parts side by side."""
_OTHERS = {"conv1d", "norm", "out_proj"}
OWN_WEIGHTS = frozenset({"dt_bias", "A_log"})
"""Weights of the net beside its layers'."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The net behind a layer's first projection [T, channels + values + 2 * heads]: queries, keys
    and values before their convolution, gates of values, and of each head what its beta and its
    step of time are made of.
    """

    num_heads: int
    num_key_heads: int  # each serves some heads side by side
    key_dim: int
    value_dim: int
    taps: torch.Tensor  # [channels, K] of the convolution
    bias: torch.Tensor | None  # [channels]
    rates: torch.Tensor  # float32 [heads], below 0
    step_bias: torch.Tensor  # float32 [heads]
    norm: Norm  # of each head's values, before their gates
    order: torch.Tensor | None = None  # int64, of a token's numbers where they lie otherwise

    @property
    def width(self) -> int:
        """Numbers of a token that the net gives."""
        return self.num_heads * self.value_dim

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The parts of a token in the first projection."""
        return len(self.taps), self.width, self.num_heads, self.num_heads

    def norms(self) -> list[Norm]:
        """Every norm."""
        return [self.norm]

    def products(self) -> list[object]:
        """Matrix products between the first projection and the net: none."""
        return []

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        held = self.taps, self.bias, self.rates, self.step_bias, self.order
        return [tensor for tensor in held if tensor is not None]

    def split(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries and keys [T, key heads, dk] and values [T, heads, dv] of channels [T, C]."""
        each = self.num_key_heads * self.key_dim
        query, key, value = convolved.split((each, each, self.width), 1)
        of_keys = self.num_key_heads, self.key_dim
        query, key = (part.unflatten(1, of_keys) for part in (query, key))
        return query, key, value.unflatten(1, (self.num_heads, self.value_dim))

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
        if self.order is not None:
            projected = projected.index_select(1, self.order)
        channels, gates, betas, steps = projected.split(self.sizes, 1)
        convolution = Convolution.over(channels, self.taps, self.bias, activated=True)
        query, key, value = self.split(recurrence.convolve(layer, convolution))
        decay = self.rates * softplus(steps.float() + self.step_bias)
        rule = DeltaRule(query, key, value, decay, betas.sigmoid())
        return ops.norm_gated(recurrence.delta_rule(layer, rule), gates, self.norm)


def is_delta_net(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a net, with projections in order."""
    return _is_net(module, _PROJECTIONS)


def is_woven_net(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a net, with woven projections."""
    return _is_net(module, _WOVEN)


def _is_net(module: Any, projections: tuple[str, ...]) -> bool:
    names = child_names(module)
    own = {name for name, _parameter in module.named_parameters(recurse=False)}
    return (
        names == {*projections, *_OTHERS}
        and own == OWN_WEIGHTS
        and isinstance(module.conv1d, nn.Conv1d)
        and module.activation in ("silu", "swish")
        and {name for name, _ in module.norm.named_parameters()} == {"weight"}
        and len(module.norm.weight) == module.head_v_dim
    )


def projections_of(net: Any) -> list[Any]:
    """The layers of a net that become its first projection."""
    names = _WOVEN if is_woven_net(net) else _PROJECTIONS
    return [getattr(net, name) for name in names]


def _unwoven(net: Any) -> torch.Tensor:
    """The places of an ordered projection's numbers in a woven one, int64."""
    served = net.num_v_heads // net.num_k_heads
    values = served * net.head_v_dim
    parts, begin = [], 0
    for sizes in ((net.head_k_dim, net.head_k_dim, values, values), (served, served)):
        end = begin + net.num_k_heads * sum(sizes)
        heads = torch.arange(begin, end).view(net.num_k_heads, -1)
        parts += [part.flatten() for part in heads.split(sizes, 1)]
        begin = end
    return torch.cat(parts).to(net.A_log.device)


def delta_net(net: Any) -> DeltaNet:
    """The net that a module of transformers is."""
    return DeltaNet(
        num_heads=net.num_v_heads,
        num_key_heads=net.num_k_heads,
        key_dim=net.head_k_dim,
        value_dim=net.head_v_dim,
        taps=net.conv1d.weight.detach().squeeze(1).contiguous(),
        bias=None if net.conv1d.bias is None else net.conv1d.bias.detach(),
        rates=-net.A_log.detach().float().exp(),
        step_bias=net.dt_bias.detach().float(),
        norm=Norm(net.norm.weight, net.norm.variance_epsilon),
        order=_unwoven(net) if is_woven_net(net) else None,
    )
