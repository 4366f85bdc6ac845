"""The parts of a model's layers, found by the names that modules of transformers have."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, relu

from daemon.engine.layers.children import child_names
from daemon.engine.layers.ops import Activation
from daemon.engine.layers.routers import is_mixture
from daemon.engine.quantised.experts import is_silu

_TOKENS = ("embed_tokens", "embeddings")
_LAST_NORM = ("norm", "norm_f", "embedding_norm", "final_layernorm")
_ANGLES = ("rotary_emb", "pos_emb")
_INPUT_NORM = ("input_layernorm", "operator_norm")
AROUND = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Norms before and behind the MLP, where they stand behind attention too."""
_BEHIND = "post_attention_layernorm"
_MLP_NORM = (_BEHIND, "ffn_norm", "pre_ff_layernorm")
_MIXER = ("self_attn", "linear_attn", "mamba", "conv")
_BESIDE = "self_attn"
"""Attention beside a mixer with states."""
_MLP = ("mlp", "feed_forward", "shared_mlp")
_EXPERTS = "block_sparse_moe"
"""Experts beside which a layer may have an MLP of its own, which is added."""
_MULTIPLIERS = ("gate_multiplier", "down_multiplier")
"""Fields of an MLP that scales its gates and its results."""
SCALE = "layer_scalar"
"""The weight of a layer that scales its states."""

_TRIED = 64
"""Numbers with which an activation is tried."""


@dataclass(frozen=True, slots=True)
class ParallelScales:
    """The scales of a layer with a mixer and attention side by side."""

    inputs: float  # of attention
    outputs: float
    mixer_inputs: float
    mixer_outputs: float

    @classmethod
    def of(cls, layer: Any, mixer: Any) -> "ParallelScales":
        """Those of a module of transformers."""
        names = "attention_in_multiplier", "attn_out_multiplier"
        inputs, outputs = (float(getattr(layer, name, 1.0)) for name in names)
        mixed = float(getattr(mixer, "ssm_in_multiplier", 1.0))
        return cls(inputs, outputs, mixed, float(getattr(layer, "ssm_out_multiplier", 1.0)))


_UNSCALED = ParallelScales(1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A mixer of tokens and the MLP behind it, with norms; one layer of transformers', or two."""

    number: int  # of the layer of transformers' that mixes tokens
    input_norm: Any
    mixer: Any
    mlp_norm: Any | None = None  # none where no MLP follows
    attention: Any | None = None  # beside the mixer, of the same states
    scales: ParallelScales = _UNSCALED  # where it is
    mlp: Any | None = None
    beside: Any | None = None  # an MLP that is added to what `mlp` gives
    output_norm: Any | None = None
    mlp_output_norm: Any | None = None
    scale: float = 1.0  # of the states behind the layer
    residual: float = 1.0  # of all that is added to states

    def norms(self) -> list[Any]:
        """Every norm of the layer itself."""
        norms = self.input_norm, self.mlp_norm, self.output_norm, self.mlp_output_norm
        return [norm for norm in norms if norm is not None]


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The modules of a model: its embedding, layers, last norm, and angles if it turns any."""

    tokens: Any
    layers: list[LayerParts]
    norm: Any
    rotary: Any | None


@dataclass(frozen=True, slots=True)
class MlpParts:
    """The layers of an MLP of two products; those of a gated one's first are merged."""

    first: list[Any]
    down: Any
    activation: Activation
    gate_scale: float = 1.0
    scale: float = 1.0  # of the result


class _Children:
    """The children of a module that were not taken yet."""

    def __init__(self, module: nn.Module) -> None:
        self.left: dict[str, Any] = dict(module.named_children())

    def take(self, names: Iterable[str]) -> Any | None:
        """The only child of one of these names; None where there is not one."""
        found = [name for name in names if name in self.left]
        return self.left.pop(found[0]) if len(found) == 1 else None


def parts_of(base: Any) -> ModelParts | None:
    """The parts of a base model; None where it has others."""
    children = _Children(base)
    tokens, norm, rotary = map(children.take, (_TOKENS, _LAST_NORM, _ANGLES))
    if tokens is None or norm is None or children.left.keys() != {"layers"}:
        return None
    layers = _layers(base)
    return ModelParts(tokens, layers, norm, rotary) if layers else None


def _layers(base: Any) -> list[LayerParts] | None:
    """The parts of every layer; None where one has others."""
    found: list[LayerParts] = []
    for number, layer in enumerate(base.layers):
        if child_names(layer) == {"norm", "mixer"}:
            parts = _half(found, number, layer)
        else:
            parts = _whole(number, layer)
        if parts is None:
            return None
        found.append(parts)
    return found


def _whole(number: int, layer: Any) -> LayerParts | None:
    """The parts of a layer with a mixer and an MLP."""
    children = _Children(layer)
    attention = children.take([_BESIDE]) if children.left.keys() >= {_BESIDE, "mamba"} else None
    mixer, input_norm = children.take(_MIXER), children.take(_INPUT_NORM)
    before, output_norm = (children.take([name]) for name in AROUND)
    behind = children.take(_MLP_NORM)
    experts, mlp = children.take([_EXPERTS]), children.take(_MLP)
    around = before is not None and output_norm is not None
    whole = None not in (mixer, input_norm, behind) and not (experts is None and mlp is None)
    if not whole or children.left or (before is None) != (output_norm is None):
        return None
    return LayerParts(
        number=number,
        input_norm=input_norm,
        mixer=mixer,
        attention=attention,
        scales=ParallelScales.of(layer, mixer),
        mlp_norm=before if around else behind,
        mlp=mlp if experts is None else experts,
        beside=None if experts is None else mlp,
        output_norm=behind if around else None,
        mlp_output_norm=output_norm,
        scale=float(getattr(layer, SCALE, 1.0)),
        residual=float(getattr(layer, "residual_multiplier", 1.0)),
    )


def _half(found: list[LayerParts], number: int, layer: Any) -> LayerParts | None:
    """The parts of a layer that is a mixer or an MLP, which joins the mixer before it."""
    if getattr(layer, "residual_in_fp32", False) and layer.norm.weight.dtype != torch.float32:
        return None  # states of a wider type than weights
    if not (is_mixture(layer.mixer) or mlp_parts(layer.mixer)):
        return LayerParts(number, layer.norm, layer.mixer)
    if not found or found[-1].mlp is not None:
        return None
    return replace(found.pop(), mlp_norm=layer.norm, mlp=layer.mixer)


def mlp_parts(mlp: Any) -> MlpParts | None:
    """The parts of an MLP; None where it has others."""
    names = child_names(mlp)
    if names == {"gate_proj", "up_proj", "down_proj", "act_fn"}:
        scales = (float(getattr(mlp, name, 1.0)) for name in _MULTIPLIERS)
        return _with_activation([mlp.gate_proj, mlp.up_proj], mlp.down_proj, mlp.act_fn, *scales)
    if names == {"input_linear", "output_linear", "activation"}:
        return _with_activation([mlp.input_linear], mlp.output_linear, mlp.activation)
    if names == {"w1", "w2", "w3"}:
        return MlpParts([mlp.w1, mlp.w3], mlp.w2, Activation.SILU)
    if names == {"up_proj", "down_proj", "act_fn"} and _is_relu_squared(mlp.act_fn):
        return MlpParts([mlp.up_proj], mlp.down_proj, Activation.RELU_SQUARED)
    return None


def _with_activation(
    first: list[Any], down: Any, module: Any, gate_scale: float = 1.0, scale: float = 1.0
) -> MlpParts | None:
    activation = _gate(module)
    return None if activation is None else MlpParts(first, down, activation, gate_scale, scale)


def _gate(activation: Any) -> Activation | None:
    """The activation of a gate that one of transformers is, if it is one of those known."""
    if is_silu(activation):
        return Activation.SILU
    states = torch.linspace(-8, 8, _TRIED)
    same = torch.allclose(activation(states), gelu(states, approximate="tanh"), atol=1e-6)
    return Activation.GELU if same else None


def _is_relu_squared(activation: Any) -> bool:
    states = torch.linspace(-8, 8, _TRIED)
    return torch.allclose(activation(states), relu(states).square())
