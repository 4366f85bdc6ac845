"""The mixer of Mamba 1 in a fused decoder's layer, in place of attention (Gu and Dao 2023)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.children import child_names
from daemon.engine.layers.mlp import Layer, Prepare
from daemon.engine.layers.norms import bare_norm, is_bare_norm, is_norm, norm_of
from daemon.engine.layers.ops import Angles, Norm, Ops
from daemon.engine.layers.ranks import bare, prepared_part
from daemon.engine.layers.recurrent.chunk_scan import time_steps
from daemon.engine.layers.recurrent.functions import DirectLinear, current_recurrence
from daemon.engine.layers.recurrent.recurrence import Convolution, Scan
from daemon.engine.quantised.linear import QuantisedLinear

_CHILDREN = {"in_proj", "conv1d", "x_proj", "dt_proj", "out_proj"}
_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")
"""Norms of steps and of both directions; a mixer has all or none."""
_ACTIVATION = "act"
OWN_WEIGHTS = frozenset({"A_log", "D"})
"""Weights of the mixer beside its layers'."""


@dataclass(frozen=True, slots=True)
class Mamba1:
    """The scan behind a layer's first projection [T, channels + gates]: a second one makes of
    convolved channels what the steps of time are made of, and directions to write and to read by.
    """

    taps: torch.Tensor  # [channels, K] of the convolution
    bias: torch.Tensor | None  # [channels]
    second: Layer  # to [T, rank + 2 * state]
    rank: int
    to_steps: Layer  # from [T, rank] to logits of each channel's step
    step_bias: torch.Tensor  # float32 [channels]
    rates: torch.Tensor  # float32 [channels, state], below 0
    direct: torch.Tensor  # float32 [channels]
    part_norms: tuple[Norm, ...]  # of logits, and of directions to write and to read; or none

    @property
    def width(self) -> int:
        """Numbers of a token that the mixer gives."""
        return len(self.taps)

    @property
    def parts(self) -> tuple[int, int, int]:
        """The parts of a token in the second projection."""
        return self.rank, self.rates.shape[1], self.rates.shape[1]

    def norms(self) -> list[Norm]:
        """Every norm."""
        return list(self.part_norms)

    def products(self) -> list[object]:
        """Matrix products between the first projection and the scan."""
        return [self.second, self.to_steps]

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        held = self.taps, self.bias, self.step_bias, self.rates, self.direct
        return [tensor for tensor in held if tensor is not None]

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """The outputs [T, width] of the scan, gated, from a first projection. It reads and writes
        its sequences' states.
        """
        recurrence = current_recurrence()
        channels, gates = projected.chunk(2, 1)
        convolution = Convolution.over(channels, self.taps, self.bias, activated=True)
        convolved = recurrence.convolve(layer, convolution)
        parts = self.second(convolved).split(self.parts, 1)
        if self.part_norms:
            pairs = zip(parts, self.part_norms, strict=True)
            parts = tuple(ops.norm(part.contiguous(), None, norm) for part, norm in pairs)
        logits, write, read = parts
        steps = time_steps(self.to_steps(logits.contiguous()), self.step_bias, True)
        scan = Scan(
            inputs=convolved,
            steps=steps,
            rates=self.rates,
            write=write,
            read=read,
            direct=self.direct,
        )
        scanned = recurrence.selective_scan(layer, scan)
        return (scanned * silu(gates)).to(projected.dtype)


def is_mamba_1(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a mixer."""
    names = child_names(module) - {_ACTIVATION}
    own = {name for name, _parameter in module.named_parameters(recurse=False)}
    return (
        names in (_CHILDREN, _CHILDREN | set(_NORMS))
        and own == OWN_WEIGHTS
        and isinstance(module.conv1d, nn.Conv1d)
        and module.activation in ("silu", "swish")
        and type(bare(module.x_proj)) in (nn.Linear, QuantisedLinear)
        and type(module.dt_proj) in (nn.Linear, DirectLinear)
        and None not in _part_norms(module)
    )


def mamba_1(module: Any, prepare: Prepare) -> Mamba1:
    """The mixer that a module of transformers is."""
    norms = _part_norms(module)
    return Mamba1(
        taps=module.conv1d.weight.detach().squeeze(1).contiguous(),
        bias=None if module.conv1d.bias is None else module.conv1d.bias.detach(),
        second=prepared_part(module.x_proj, prepare),
        rank=module.time_step_rank,
        to_steps=prepare(_without_bias(module.dt_proj)),
        step_bias=module.dt_proj.bias.detach().float(),
        rates=-module.A_log.detach().float().exp(),
        direct=module.D.detach().float(),
        part_norms=tuple(norm for norm in norms if norm is not None),
    )


def _part_norms(module: Any) -> list[Norm | None]:
    """The norms of what the second projection gives, if it has any; None for one that is none."""
    widths = module.time_step_rank, module.ssm_state_size, module.ssm_state_size
    pairs = zip(_NORMS, widths, strict=True)
    return [_norm(getattr(module, name), width) for name, width in pairs if hasattr(module, name)]


def _norm(module: Any, width: int) -> Norm | None:
    """The norm of so many numbers that a module is, with a weight or without."""
    if is_norm(module):
        return norm_of(module)
    if not is_bare_norm(module, width):
        return None
    return bare_norm(module, module.weight.new_ones(width))


def _without_bias(layer: Any) -> nn.Linear:
    """A layer without its bias, which is added in float32 where steps are made."""
    with torch.device("meta"):
        bare = nn.Linear(layer.in_features, layer.out_features, bias=False)
    bare.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
    return bare
