"""Makes a straight `Decoder` from a loaded model whose modules have the usual shape.

It recognises modules, not the model's name; what a module does beyond its shape (scaled residuals,
layers without positions) shows in the logits, which a trial compares before it is used.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu

from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.layers.decoder import Decoder, DecoderLayer, Prepare
from daemon.engine.layers.delta_net import (
    OWN_WEIGHTS,
    DeltaNet,
    delta_net,
    is_delta_net,
    projections_of,
)
from daemon.engine.layers.embeddings import embeddings_of
from daemon.engine.layers.latent import projection_of
from daemon.engine.layers.latent_heads import LatentHeads
from daemon.engine.layers.mlp import GatedMlp, Layer, Mixture
from daemon.engine.layers.norms import bare_norm, is_bare_norm, is_norm, norm_of, scaled_norm
from daemon.engine.layers.ops import Activation, Heads, Ops
from daemon.engine.layers.prepare import prepared
from daemon.engine.layers.ranks import RankPart, bare
from daemon.engine.layers.rotary import RotaryTable
from daemon.engine.layers.routers import is_mixture, router_of, shared_of
from daemon.engine.quantised.experts import QuantisedExperts, is_silu
from daemon.engine.quantised.linear import QuantisedLinear

_BASE = {"embed_tokens", "layers", "norm", "rotary_emb"}
_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_RECURRENT_LAYER = (_LAYER - {"self_attn"}) | {"linear_attn"}
"""A layer with a delta net in place of attention."""
_AROUND = {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
"""Beside them, where norms stand before and behind attention and the MLP."""
_NORMS = {"input_layernorm", "post_attention_layernorm"} | _AROUND
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_ATTENTION_NORMS = {"q_norm", "k_norm"}
_ROWS = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}
"""Attention with latent rows, and the two ways to its queries."""
_LATENT = _ROWS | {"q_proj"}
_LATENT_TWICE = _ROWS | {"q_a_proj", "q_a_layernorm", "q_b_proj"}
_VALUE_NORM = "v_norm"
_SINKS, _SCALE = "sinks", "layer_scalar"
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_LINEARS = ({nn.Linear}, {QuantisedLinear})
"""Layers that may be fused into a product: all of them plain, or all quantised."""
MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that become one, in the order of its rows."""

_TRIED = 64
"""Numbers with which an activation is tried."""

PrepareBlock = Callable[[Any, Prepare], Any]
"""Prepares the block of a mixture, by a function that prepares a layer."""


def fuse(
    model: Any,
    ops: Ops,
    prepare: Prepare,
    num_positions: int,
    prepare_block: PrepareBlock = prepared,
    windows: tuple[int, ...] = (),
) -> Decoder | None:
    """A decoder over the model's own weights; None where its modules are of another shape.

    It computes tokens at positions below `num_positions`. Merged weights replace the single ones,
    which become views of them: nothing is held twice. `prepare_block` copies the block of a mixture
    with prepared layers; `windows` of each layer, where one has any (see `AttentionVariant`).
    """
    base = model.base_model
    if not recognised(base):
        return None
    kinds = _rotary_kinds(base)
    tables = [_turning(base.rotary_emb, kind) for kind in kinds]
    in_pairs = not kinds[0] and _is_complex(base.rotary_emb)
    return Decoder(
        embeddings=embeddings_of(base.embed_tokens, ops),
        rotary=tuple(RotaryTable(it, num_positions, base.norm.weight.device) for it in tables),
        layers=tuple(
            replace(
                _layer(layer, prepare, prepare_block, windows[index] if windows else 0, in_pairs),
                rotary=kinds.index(_mixer(layer).layer_type) if kinds[0] else 0,
            )
            for index, layer in enumerate(base.layers)
        ),
        norm=norm_of(base.norm),
        vocabulary=_prepared(model.get_output_embeddings(), prepare),
        ops=ops,
        cap=getattr(model.config, "final_logit_softcapping", None) or 0.0,
    )


def _rotary_kinds(base: Any) -> list[str]:
    """The kinds of layers that have angles of their own; one without a name where all have the
    same.
    """
    return sorted(getattr(base.rotary_emb, "layer_types", ())) or [""]


def _turning(rotary: Any, kind: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The module of angles, for a kind of layers."""
    if kind:
        return partial(rotary, layer_type=kind)
    return partial(_of_complex, rotary) if _is_complex(rotary) else rotary


def _is_complex(rotary: Any) -> bool:
    """Whether a module gives angles as complex numbers, of pairs of neighbouring numbers."""
    at = next(iter(rotary.buffers())).device
    states = torch.empty(0, device=at)
    return isinstance(rotary(states, torch.zeros(1, 1, dtype=torch.int64, device=at)), torch.Tensor)


def _of_complex(
    rotary: Any, states: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of such angles."""
    found = rotary(states, positions)
    return torch.cat((found.real, found.real), -1), torch.cat((found.imag, found.imag), -1)


def recognised(base: nn.Module) -> bool:
    """Whether every module of a base model is one that `Decoder` knows how to compute."""
    if _names(base) != _BASE:
        return False
    layers: Any = base.layers
    kinds = _rotary_kinds(base)
    if kinds[0] and any(
        getattr(_mixer(layer), "layer_type", None) not in kinds for layer in layers
    ):
        return False
    return (
        is_norm(base.norm)
        and all(_recognised_layer(layer) for layer in layers)
        and not any(_has_own(module) for module in base.modules())
    )


def _has_own(module: nn.Module) -> bool:
    """Whether a module that has others has weights beside theirs, such as a scale; not attention's
    sinks and the scale of a layer's states, which are known.

    One model's may be ones or zeros, so that its trial passes, and another's are not.
    """
    if isinstance(module, QuantisedExperts):
        return False  # computed as a whole
    inner = _names(module)
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    known = {_SINKS} if inner >= _ATTENTION else set()
    if is_delta_net(module):
        known = set(OWN_WEIGHTS)
    if inner >= _LAYER | _AROUND:
        known = {_SCALE}
    return bool(inner) and bool({name for name, _ in own} - known)


def _mixer(layer: Any) -> Any:
    """The module of a layer that mixes tokens: its attention, or its delta net."""
    return layer.linear_attn if "linear_attn" in _names(layer) else layer.self_attn


def _recognised_layer(layer: Any) -> bool:
    if _names(layer) not in (_LAYER, _LAYER | _AROUND, _RECURRENT_LAYER):
        return False
    attention, mlp = _mixer(layer), layer.mlp
    inner = _names(attention)
    norms = [getattr(layer, name) for name in _names(layer) & _NORMS]
    if is_delta_net(attention):
        products = [projections_of(attention), [attention.out_proj]]
    elif _names(layer) == _RECURRENT_LAYER:
        return False
    elif _has_heads(attention, inner):
        norms += [getattr(attention, name) for name in _ATTENTION_NORMS & inner]
        products = [_heads_projections(attention), [attention.o_proj]]
    elif inner in (_LATENT, _LATENT_TWICE) and projection_of(attention) is not None:
        first, second = _projections(attention)
        norms += [getattr(attention, name) for name in inner if name.endswith("layernorm")]
        products = [first, [attention.o_proj], *([] if second is None else [[second]])]
    else:
        return False
    if _is_gated(mlp):
        products += [[mlp.gate_proj, mlp.up_proj], [mlp.down_proj]]
    return (
        (_is_gated(mlp) or is_mixture(mlp))
        and all(is_norm(norm) for norm in norms)
        and all({type(bare(linear)) for linear in product} in _LINEARS for product in products)
    )


def _has_heads(attention: Any, inner: set[str]) -> bool:
    """Whether attention has projections of queries, keys and values, perhaps with norms; values may
    be what keys are before their norm.
    """
    if _VALUE_NORM in inner:
        if not is_bare_norm(attention.v_norm, attention.head_dim):
            return False
        inner = inner - {_VALUE_NORM}
        if getattr(attention, "v_proj", 0) is None:
            inner = inner | {"v_proj"}
    return inner in (_ATTENTION, _ATTENTION | _ATTENTION_NORMS)


def _heads_projections(attention: Any) -> list[Any]:
    """The projections of queries, keys and values; of keys twice, where values are the same."""
    values = attention.v_proj if attention.v_proj is not None else attention.k_proj
    return [attention.q_proj, attention.k_proj, values]


def _is_gated(mlp: Any) -> bool:
    return _names(mlp) == _MLP and _activation(mlp.act_fn) is not None


def _activation(activation: Any) -> Activation | None:
    """The activation that one of transformers is, if it is one of those known."""
    if is_silu(activation):
        return Activation.SILU
    states = torch.linspace(-8, 8, _TRIED)
    same = torch.allclose(activation(states), gelu(states, approximate="tanh"), atol=1e-6)
    return Activation.GELU if same else None


def _names(module: Any) -> set[str]:
    return {name for name, _child in module.named_children()}


def _layer(
    layer: Any, prepare: Prepare, prepare_block: PrepareBlock, window: int, in_pairs: bool
) -> DecoderLayer:
    attention, mlp = _mixer(layer), layer.mlp
    heads: Heads | LatentHeads | DeltaNet
    output = getattr(attention, "o_proj", None)
    if is_delta_net(attention):
        heads, first, output = delta_net(attention), projections_of(attention), attention.out_proj
    elif projection_of(attention) is None:
        heads = _heads(attention, window)
        first = _heads_projections(attention)
    else:
        heads = _latent_heads(attention, prepare, in_pairs)
        first, _ = _projections(attention)
    around = _names(layer) >= _AROUND
    behind = norm_of(layer.post_attention_layernorm)
    scale = float(getattr(layer, _SCALE, 1.0))
    return DecoderLayer(
        input_norm=norm_of(layer.input_layernorm),
        query_key_value=prepare(merge(first)),
        heads=heads,
        output=_prepared(output, prepare),
        mlp_norm=norm_of(layer.pre_feedforward_layernorm) if around else behind,
        mlp=_gated(mlp, prepare) if _is_gated(mlp) else _mixture(mlp, prepare, prepare_block),
        output_norm=behind if around else None,
        mlp_output_norm=scaled_norm(norm_of(layer.post_feedforward_layernorm), scale)
        if around
        else None,
        scale=scale,
    )


def _prepared(layer: Any, prepare: Prepare) -> Any:
    """A layer as it is computed here, or this rank's part of it."""
    return layer.prepared(prepare) if isinstance(layer, RankPart) else prepare(layer)


def _gated(mlp: Any, prepare: Prepare) -> GatedMlp:
    activation = _activation(mlp.act_fn)
    assert activation is not None, "recognised"
    merged = merge([mlp.gate_proj, mlp.up_proj])
    return GatedMlp(prepare(merged), _prepared(mlp.down_proj, prepare), activation)


def _mixture(block: Any, prepare: Prepare, prepare_block: PrepareBlock) -> Mixture:
    shared, share = shared_of(block)
    usual = shared is None or _is_gated(shared)
    router = router_of(block) if usual and isinstance(block.experts, QuantisedExperts) else None
    # A router of two bytes is computed as its own code rounds it.
    if router is None or router.weight.dtype is not torch.float32:
        whole = prepare_block(block, prepare)
        return Mixture(whole.experts, block=whole)
    alone = copy.copy(block)
    alone._modules = {"experts": block.experts}
    return Mixture(
        prepare_block(alone, prepare).experts,
        router,
        None if shared is None else _gated(shared, prepare),
        None if share is None else prepare(share),
    )


def _projections(attention: Any) -> tuple[list[Any], Any]:
    """Layers of a latent layer's states that become one, and the second step to queries, if any."""
    rows = attention.kv_a_proj_with_mqa
    if "q_proj" in _names(attention):
        return [attention.q_proj, rows], None
    return [attention.q_a_proj, rows], attention.q_b_proj


def _latent_heads(attention: Any, prepare: Prepare, in_pairs: bool) -> LatentHeads:
    projection, (_, second) = projection_of(attention), _projections(attention)
    assert projection is not None, "recognised"
    return LatentHeads(
        projection=projection,
        row_norm=norm_of(attention.kv_a_layernorm),
        scale=attention.scaling,
        query=None if second is None else prepare(second),
        query_norm=None if second is None else norm_of(attention.q_a_layernorm),
        in_pairs=in_pairs or bool(getattr(attention.config, "rope_interleave", False)),
    )


def _heads(attention: Any, window: int) -> Heads:
    has_norms = hasattr(attention, "q_norm")
    gated = attention.q_proj.out_features == 2 * bare(attention.o_proj).in_features
    return Heads(
        num_heads=attention.q_proj.out_features // attention.head_dim // (1 + gated),
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        scale=attention.scaling,
        query_norm=norm_of(attention.q_norm) if has_norms else None,
        key_norm=norm_of(attention.k_norm) if has_norms else None,
        value_norm=bare_norm(attention.v_norm, attention.k_norm.weight)
        if hasattr(attention, _VALUE_NORM)
        else None,
        variant=_variant(attention, window),
        gated=gated,
    )


def _variant(attention: Any, window: int) -> AttentionVariant:
    """A layer's deviations, as its attention's module tells transformers' interface of them."""
    cap = getattr(attention, "attn_logit_softcapping", None) or 0.0
    sinks = getattr(attention, _SINKS, None)
    if not window and not cap and sinks is None:
        return FULL
    return AttentionVariant(window, cap, None if sinks is None else sinks.detach().float())


def merge(linears: list[Any]) -> Layer:
    """One layer that computes several of the same input, whose weights become views of its own.

    Quantised ones stay where they are: the layer reads one after the other.
    """
    first, rows = linears[0], [linear.out_features for linear in linears]
    has_bias = any(linear.bias is not None for linear in linears)
    if isinstance(first, QuantisedLinear):
        bias = _merged_bias(linears) if has_bias else None
        weights = [weight for linear in linears for weight in linear.weights]
        return QuantisedLinear(first.in_features, sum(rows), bias, weights, first.unpack)
    with torch.device("meta"):
        merged = nn.Linear(first.in_features, sum(rows), bias=False)
    merged.weight = _merged([linear.weight for linear in linears])
    for linear, part in zip(linears, merged.weight.split(rows), strict=True):
        linear.weight = nn.Parameter(part, requires_grad=False)
    if has_bias:
        merged.bias = _merged_bias(linears)
    return merged


def _merged(parts: list[torch.Tensor]) -> nn.Parameter:
    """All rows of the parts: their own memory where they lie back to back, else a copy."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        apart = part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        if apart or part.data_ptr() != end or not part.is_contiguous():
            return nn.Parameter(torch.cat(parts), requires_grad=False)
        end += part.nbytes
    whole = first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    return nn.Parameter(whole, requires_grad=False)


def _merged_bias(linears: list[Any]) -> nn.Parameter:
    """The biases of all, zeros where one has none."""
    like = next(linear.bias for linear in linears if linear.bias is not None)
    return _merged(
        [
            like.new_zeros(linear.out_features) if linear.bias is None else linear.bias
            for linear in linears
        ]
    )
