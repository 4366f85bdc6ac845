"""The mixer of Mamba 2 in a fused decoder's layer, in place of attention (Dao and Gu 2024)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.children import child_names
from daemon.engine.layers.ops import Angles, Norm, Ops
from daemon.engine.layers.ranks import SharedNorm, bare
from daemon.engine.layers.recurrent.chunk_scan import time_steps
from daemon.engine.layers.recurrent.functions import current_recurrence
from daemon.engine.layers.recurrent.recurrence import Convolution, Scan

_CHILDREN = {"in_proj", "conv1d", "norm", "out_proj"}
_ACTIVATION = "act"
OWN_WEIGHTS = frozenset({"dt_bias", "A_log", "D"})
"""Weights of the mixer beside its layers'."""
FACTORS = "mup_vector"
"""Factors of the first projection, which a mixer beside attention has (Falcon-H1)."""
_TRIED, _CLOSE = 3, 1e-3
"""Random states with which a gated norm is compared, and how far roundings may lead."""


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The scan behind a layer's first projection [T, gates + channels + heads]: inputs and their
    directions before a convolution are its channels; each head has a step of time.
    """

    num_heads: int
    num_groups: int  # each serves some heads side by side
    head_dim: int
    state_size: int
    taps: torch.Tensor  # [channels, K] of the convolution
    bias: torch.Tensor | None  # [channels]
    rates: torch.Tensor  # float32 [heads], below 0
    step_bias: torch.Tensor  # float32 [heads]
    limits: tuple[float, float]  # of steps
    direct: torch.Tensor  # float32 [heads]
    norm: Norm | None  # [width], of gated outputs, if they are normed
    norm_groups: int  # parts of a token's outputs that are normed by themselves
    shared_norm: SharedNorm | None = None  # in place of `norm`, where ranks share a group

    @property
    def width(self) -> int:
        """Numbers of a token that the mixer gives."""
        return self.num_heads * self.head_dim

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The parts of a token in the first projection."""
        return self.width, len(self.taps), self.num_heads

    def norms(self) -> list[Norm]:
        """Every norm."""
        return [] if self.norm is None else [self.norm]

    def products(self) -> list[object]:
        """Matrix products between the first projection and the scan: none."""
        return []

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        held = self.taps, self.bias, self.rates, self.step_bias, self.direct
        return [tensor for tensor in held if tensor is not None]

    def split(self, convolved: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Inputs [T, heads, P] and directions to write and to read by [T, groups, N] of channels
        [T, C].
        """
        each = self.num_groups * self.state_size
        inputs, write, read = convolved.split((self.width, each, each), 1)
        of_groups = self.num_groups, self.state_size
        write, read = (part.unflatten(1, of_groups) for part in (write, read))
        return inputs.unflatten(1, (self.num_heads, self.head_dim)), write, read

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """The outputs [T, width] of the scan, gated and normed, from a first projection. It reads
        and writes its sequences' states.
        """
        recurrence = current_recurrence()
        gates, channels, steps = projected.split(self.sizes, 1)
        convolution = Convolution.over(channels, self.taps, self.bias, activated=True)
        inputs, write, read = self.split(recurrence.convolve(layer, convolution))
        steps = time_steps(steps, self.step_bias, True, self.limits)
        scan = Scan(
            inputs=inputs,
            steps=steps,
            rates=self.rates,
            write=write,
            read=read,
            direct=self.direct,
        )
        scanned = recurrence.chunk_scan(layer, scan)
        if self.norm is None:
            return (scanned.flatten(1) * silu(gates)).to(projected.dtype)
        if self.shared_norm is not None:
            return self.shared_norm(scanned.flatten(1), gates)
        grouped = scanned.reshape(len(projected), self.norm_groups, -1)
        return ops.gate_normed(grouped, gates, self.norm)


def is_mamba_2(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a mixer, and no factors."""
    return has_parts(module) and not hasattr(module, FACTORS)


def has_parts(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a mixer."""
    names = child_names(module)
    own = {name for name, _parameter in module.named_parameters(recurse=False)}
    return (
        names - {_ACTIVATION} == _CHILDREN
        and own == OWN_WEIGHTS
        and isinstance(module.conv1d, nn.Conv1d)
        and module.activation in ("silu", "swish")
        and (isinstance(module.norm, nn.Identity | SharedNorm) or _is_gated_norm(module.norm))
    )


def mamba_2(module: Any) -> Mamba2:
    """The mixer that a module of transformers is."""
    is_bare, norm = isinstance(module.norm, nn.Identity), bare(module.norm)
    limits = getattr(module, "time_step_limit", None) or (0.0, torch.inf)
    return Mamba2(
        num_heads=module.num_heads,
        num_groups=module.n_groups,
        head_dim=module.head_dim,
        state_size=module.ssm_state_size,
        taps=module.conv1d.weight.detach().squeeze(1).contiguous(),
        bias=None if module.conv1d.bias is None else module.conv1d.bias.detach(),
        rates=-module.A_log.detach().float().exp(),
        step_bias=module.dt_bias.detach().float(),
        limits=(float(limits[0]), float(limits[1])),
        direct=module.D.detach().float(),
        norm=None if is_bare else Norm(norm.weight, norm.variance_epsilon),
        norm_groups=1 if is_bare else _num_groups(norm),
        shared_norm=module.norm if isinstance(module.norm, SharedNorm) else None,
    )


def _num_groups(norm: Any) -> int:
    """The parts of a token that a norm norms by themselves."""
    found: int = getattr(norm, "n_groups", 0)
    return found or len(norm.weight) // getattr(norm, "group_size", len(norm.weight))


def _is_gated_norm(norm: Any) -> bool:
    """Whether a norm of transformers gates its states before it norms them, in groups."""
    if {name for name, _ in norm.named_parameters()} != {"weight"}:
        return False
    weight, num_groups = norm.weight, _num_groups(norm)
    if weight.is_meta:  # no numbers yet to try it with
        return True
    drawn = torch.randn(2, _TRIED, len(weight), generator=torch.Generator().manual_seed(0))
    states, gates = drawn.to(weight.device)
    with torch.inference_mode():
        try:
            found = norm(states, gates)
        except TypeError:  # it takes no gates
            return False
        grouped = states.unflatten(1, (num_groups, -1))
        own = Ops().gate_normed(grouped, gates, Norm(weight, norm.variance_epsilon))
    return torch.allclose(found.float(), own.float(), rtol=_CLOSE, atol=_CLOSE)
