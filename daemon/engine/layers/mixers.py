"""The mixers of tokens that keep states: which there are, and how modules show them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.engine.layers import delta_net, kimi_delta, mamba, mamba_1, short_convolution
from daemon.engine.layers.delta_net import DeltaNet
from daemon.engine.layers.kimi_delta import KimiDelta
from daemon.engine.layers.mamba import Mamba2
from daemon.engine.layers.mamba_1 import Mamba1
from daemon.engine.layers.mlp import Prepare
from daemon.engine.layers.short_convolution import ShortConvolution

StateMixer = DeltaNet | KimiDelta | Mamba1 | Mamba2 | ShortConvolution
"""A part of a layer in place of attention, which keeps a state of each sequence."""


@dataclass(frozen=True, slots=True)
class MixerKind:
    """A kind of mixer as a module of transformers has it."""

    recognises: Callable[[Any], bool]
    make: Callable[[Any, Prepare], StateMixer]
    projections_of: Callable[[Any], list[Any]]  # the layers that become its first projection
    own_weights: frozenset[str] = frozenset()  # beside its layers'
    output: str = "out_proj"  # its last layer


def _projection_of(module: Any) -> list[Any]:
    return [module.in_proj]


def _alone(make: Callable[[Any], StateMixer]) -> Callable[[Any, Prepare], StateMixer]:
    """Makes a mixer that has no products of its own."""
    return lambda module, _prepare: make(module)


_KINDS = (
    MixerKind(
        lambda module: delta_net.is_delta_net(module) or delta_net.is_woven_net(module),
        _alone(delta_net.delta_net),
        delta_net.projections_of,
        delta_net.OWN_WEIGHTS,
    ),
    MixerKind(
        kimi_delta.is_kimi_delta,
        kimi_delta.kimi_delta,
        kimi_delta.projections_of,
        output="o_proj",
    ),
    MixerKind(mamba.is_mamba_2, _alone(mamba.mamba_2), _projection_of, mamba.OWN_WEIGHTS),
    MixerKind(mamba_1.is_mamba_1, mamba_1.mamba_1, _projection_of, mamba_1.OWN_WEIGHTS),
    MixerKind(
        short_convolution.is_short_convolution,
        _alone(short_convolution.short_convolution),
        _projection_of,
    ),
)


def kind_of(module: Any) -> MixerKind | None:
    """The kind of mixer that a module is; None where it is none that is known."""
    return next((kind for kind in _KINDS if kind.recognises(module)), None)
