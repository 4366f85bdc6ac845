"""Makes a straight `Decoder` from a loaded model whose modules have the usual shape.

It recognises modules, not the model's name; what a module does beyond its shape (scales of its own,
single layers without positions) shows in the logits, which a trial compares before it is
used.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.layers.children import child_names
from daemon.engine.layers.decoder import Decoder, DecoderLayer
from daemon.engine.layers.embeddings import embeddings_of
from daemon.engine.layers.kimi_delta import GATE_WEIGHTS, is_forget_gate
from daemon.engine.layers.latent import projection_of
from daemon.engine.layers.latent_heads import LatentHeads
from daemon.engine.layers.layer_parts import (
    AROUND,
    SCALE,
    LayerParts,
    MlpParts,
    mlp_parts,
    parts_of,
)
from daemon.engine.layers.mamba import FACTORS, OWN_WEIGHTS, has_parts, mamba_2
from daemon.engine.layers.mixers import StateMixer, kind_of
from daemon.engine.layers.mlp import DenseMlp, Layer, Mixture, Prepare
from daemon.engine.layers.norms import bare_norm, is_bare_norm, is_norm, norm_of, scaled_norm
from daemon.engine.layers.ops import Heads, Norm, Ops
from daemon.engine.layers.parallel_heads import ParallelHeads, SummedOutputs
from daemon.engine.layers.prepare import prepared
from daemon.engine.layers.ranks import bare, prepared_part
from daemon.engine.layers.rotary import RotaryTable
from daemon.engine.layers.routers import CORRECTIONS, is_mixture, router_of, shared_of
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear

_ATTENTION = {"q_proj", "k_proj", "v_proj"}
_OUTPUT = ("o_proj", "out_proj")
_ATTENTION_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"))
_ROWS = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}
"""Attention with latent rows, and the two ways to its queries."""
_LATENT = _ROWS | {"q_proj"}
_LATENT_TWICE = _ROWS | {"q_a_proj", "q_a_layernorm", "q_b_proj"}
_VALUE_NORM = "v_norm"
_SINKS = "sinks"
_LINEARS = ({nn.Linear}, {QuantisedLinear})
"""Layers that may be fused into a product: all of them plain, or all quantised."""
MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers that become one, in the order of its rows."""

PrepareBlock = Callable[[Any, Prepare], Any]
"""Prepares the block of a mixture, by a function that prepares a layer."""


_MULTIPLIED = frozenset({"hyperclovax"})
"""Types whose logits are multiplied by `logits_scaling`; others divide them by it."""


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
    base, config = model.base_model, model.config
    parts = parts_of(base)
    divisor = float(getattr(config, "logits_scaling", 1.0))
    divisor /= float(getattr(base, "lm_head_multiplier", 1.0)) or 1.0
    if parts is None or not divisor or not recognised(base):
        return None
    if config.model_type in _MULTIPLIED:
        divisor = 1 / divisor
    kinds = _rotary_kinds(parts.rotary)
    tables = [_turning(parts.rotary, kind) for kind in kinds]
    in_pairs = not kinds[0] and _is_complex(parts.rotary)
    # States are kept divided by what all that is added to them is multiplied by.
    unit = parts.layers[0].residual
    factor = float(getattr(base, "embedding_multiplier", 1.0)) / unit
    fused = (
        _layer(layer, prepare, prepare_block, windows[layer.number] if windows else 0, in_pairs)
        for layer in parts.layers
    )
    norm = _of_unit(norm_of(parts.norm), unit)
    return Decoder(
        embeddings=embeddings_of(parts.tokens, ops, factor),
        rotary=tuple(RotaryTable(it, num_positions, parts.norm.weight.device) for it in tables),
        layers=tuple(
            replace(made, rotary=kinds.index(layer.mixer.layer_type) if kinds[0] else 0)
            for made, layer in zip(fused, parts.layers, strict=True)
        ),
        norm=scaled_norm(norm, 1 / divisor),
        vocabulary=prepared_part(model.get_output_embeddings(), prepare),
        ops=ops,
        cap=getattr(config, "final_logit_softcapping", None) or 0.0,
    )


def _of_unit(norm: Norm, unit: float) -> Norm:
    """A norm of states that are divided by `unit`: it gives what it gave of whole ones."""
    return Norm(norm.weight, norm.epsilon / unit**2)


def _rotary_kinds(rotary: Any) -> list[str]:
    """The kinds of layers that have angles of their own; one without a name where all have the
    same.
    """
    return sorted(getattr(rotary, "layer_types", ())) or [""]


def _turning(rotary: Any, kind: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The module of angles, for a kind of layers; without one, nothing turns."""
    if rotary is None:
        return _still
    if kind:
        return partial(rotary, layer_type=kind)
    return partial(_of_complex, rotary) if _is_complex(rotary) else rotary


def _still(states: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of no angle, of the first two numbers of a head."""
    still = states.new_zeros(*positions.shape, 2)
    return torch.ones_like(still), still


def _is_complex(rotary: Any) -> bool:
    """Whether a module gives angles as complex numbers, of pairs of neighbouring numbers."""
    if rotary is None:
        return False
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
    parts = parts_of(base)
    if parts is None:
        return False
    layers, kinds = parts.layers, _rotary_kinds(parts.rotary)
    if kinds[0] and any(getattr(it.mixer, "layer_type", None) not in kinds for it in layers):
        return False
    return (
        is_norm(parts.norm)
        and len({layer.residual for layer in layers}) == 1
        and layers[0].residual != 0
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
    inner = child_names(module)
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    known = {_SINKS} if inner >= _ATTENTION else set()
    if (kind := kind_of(module)) is not None:
        known = set(kind.own_weights)
    if is_forget_gate(module):
        known = set(GATE_WEIGHTS)
    if is_mixture(module):
        known = set(CORRECTIONS)
    if hasattr(module, FACTORS) and has_parts(module):
        known = {*OWN_WEIGHTS, FACTORS}
    if inner >= set(AROUND):
        known = {SCALE}
    return bool(inner) and bool({name for name, _ in own} - known)


def _recognised_layer(layer: LayerParts) -> bool:
    mixer, mlp = layer.mixer, layer.mlp
    inner, norms = child_names(mixer), layer.norms()
    if layer.attention is not None:
        if not _is_parallel(layer):
            return False
        first = [mixer.in_proj, *_heads_projections(layer.attention)]
        products = [first, [mixer.out_proj], [_output(layer.attention)]]
    elif (kind := kind_of(mixer)) is not None:
        products = [kind.projections_of(mixer), [getattr(mixer, kind.output)]]
    elif _has_heads(mixer, inner):
        of_heads = _head_norms(mixer) or ()
        if any(norm.weight.shape != (mixer.head_dim,) for norm in of_heads if is_norm(norm)):
            return False  # of all heads at once, as OLMoE has them
        norms += of_heads
        products = [_heads_projections(mixer), [_output(mixer)]]
    elif inner in (_LATENT, _LATENT_TWICE) and projection_of(mixer) is not None:
        first, second = _projections(mixer)
        norms += [getattr(mixer, name) for name in inner if name.endswith("layernorm")]
        products = [first, [mixer.o_proj], *([] if second is None else [[second]])]
    else:
        return False
    for part in (mlp, layer.beside):
        if (found := None if part is None else mlp_parts(part)) is not None:
            products += [found.first, [found.down]]
        elif part is not None and not (part is mlp and is_mixture(part)):
            return False
    return all(is_norm(norm) for norm in norms) and all(
        {type(bare(linear)) for linear in product} in _LINEARS for product in products
    )


def _is_parallel(layer: LayerParts) -> bool:
    """Whether a layer has Mamba 2 and plain heads side by side, whose scales can stand behind their
    first projections: none has a bias there and is scaled before.
    """
    mixer, attention = layer.mixer, layer.attention
    inner = child_names(attention)
    if not (has_parts(mixer) and hasattr(mixer, FACTORS) and inner - set(_OUTPUT) == _ATTENTION):
        return False
    scales = layer.scales
    scaled = [(mixer.in_proj, scales.mixer_inputs)]
    scaled += [(part, scales.inputs) for part in _heads_projections(attention)]
    return _has_heads(attention, inner) and all(
        scale == 1.0 or part.bias is None for part, scale in scaled
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
    rest = inner - _ATTENTION
    return (
        inner >= _ATTENTION
        and len(rest & set(_OUTPUT)) == 1
        and rest - set(_OUTPUT) in (set(), *map(set, _ATTENTION_NORMS))
    )


def _output(attention: Any) -> Any:
    """The projection of what heads give."""
    (name,) = child_names(attention) & set(_OUTPUT)
    return getattr(attention, name)


def _head_norms(attention: Any) -> tuple[Any, Any] | None:
    """The norms of queries and keys; None where they have none."""
    for query, key in _ATTENTION_NORMS:
        if hasattr(attention, query):
            return getattr(attention, query), getattr(attention, key)
    return None


def _heads_projections(attention: Any) -> list[Any]:
    """The projections of queries, keys and values; of keys twice, where values are the same."""
    values = attention.v_proj if attention.v_proj is not None else attention.k_proj
    return [attention.q_proj, attention.k_proj, values]


def _layer(
    layer: LayerParts, prepare: Prepare, prepare_block: PrepareBlock, window: int, in_pairs: bool
) -> DecoderLayer:
    mixer, unit, scale = layer.mixer, layer.residual, layer.scale
    heads: Heads | LatentHeads | StateMixer | ParallelHeads
    if layer.attention is not None:
        first = [mixer.in_proj, *_heads_projections(layer.attention)]
        heads, output = _parallel(layer, window), None
    elif (kind := kind_of(mixer)) is not None:
        heads, first = kind.make(mixer, prepare), kind.projections_of(mixer)
        output = getattr(mixer, kind.output)
    elif projection_of(mixer) is None:
        heads, first, output = _heads(mixer, window), _heads_projections(mixer), _output(mixer)
    else:
        heads, output = _latent_heads(mixer, prepare, in_pairs), mixer.o_proj
        first, _ = _projections(mixer)
    around, last = layer.output_norm, layer.mlp_output_norm
    return DecoderLayer(
        number=layer.number,
        input_norm=_of_unit(norm_of(layer.input_norm), unit),
        query_key_value=prepare(merge(first)),
        heads=heads,
        output=_summed(layer, prepare) if output is None else prepared_part(output, prepare),
        mlp_norm=None if layer.mlp_norm is None else _of_unit(norm_of(layer.mlp_norm), unit),
        mlp=None if layer.mlp is None else _mlp(layer, prepare, prepare_block),
        output_norm=None if around is None else norm_of(around),
        mlp_output_norm=None if last is None else scaled_norm(norm_of(last), scale),
        scale=scale,
    )


def _parallel(layer: LayerParts, window: int) -> ParallelHeads:
    mixer, attention, scales = layer.mixer, layer.attention, layer.scales
    query, key, value = (part.out_features for part in _heads_projections(attention))
    own = getattr(mixer, FACTORS).flatten().float()
    sizes = torch.tensor([query, key, value], device=own.device)
    factors = own.new_tensor([1.0, float(getattr(attention, "key_multiplier", 1.0)), 1.0])
    of_heads = scales.inputs * factors.repeat_interleave(sizes)
    together = torch.cat((scales.mixer_inputs * own, of_heads))
    return ParallelHeads(mamba_2(mixer), _heads(attention, window), together)


def _summed(layer: LayerParts, prepare: Prepare) -> SummedOutputs:
    """The outputs of a mixer and of attention beside it."""
    parts, scales = [layer.mixer.out_proj, _output(layer.attention)], layer.scales
    first, second = (prepared_part(part, prepare) for part in parts)
    widths = bare(parts[0]).in_features, bare(parts[1]).in_features
    return SummedOutputs((first, second), widths, (scales.mixer_outputs, scales.outputs))


def _mlp(layer: LayerParts, prepare: Prepare, prepare_block: PrepareBlock) -> DenseMlp | Mixture:
    device = layer.input_norm.weight.device
    alone = _plain_mlp(layer.mlp, prepare, device)
    if alone is not None:
        return alone
    beside = None if layer.beside is None else _plain_mlp(layer.beside, prepare, device)
    return _mixture(layer.mlp, prepare, prepare_block, beside)


def _plain_mlp(mlp: Any, prepare: Prepare, device: torch.device) -> DenseMlp | None:
    """An MLP of two products; None where a module is something else."""
    parts = mlp_parts(mlp)
    if parts is None:
        return None
    first, down = prepare(merge(parts.first)), prepared_part(parts.down, prepare)
    return DenseMlp(first, down, parts.activation, _factors(parts, device), parts.scale)


def _factors(parts: MlpParts, device: torch.device) -> torch.Tensor | None:
    """Factors of an MLP's gates, and of what they gate; None where they are not scaled."""
    if parts.gate_scale == 1.0:
        return None
    factors = [parts.gate_scale] + [1.0] * (len(parts.first) - 1)
    sizes = torch.tensor([linear.out_features for linear in parts.first], device=device)
    return torch.tensor(factors, device=device).repeat_interleave(sizes)


def _mixture(
    block: Any, prepare: Prepare, prepare_block: PrepareBlock, beside: DenseMlp | None
) -> Mixture:
    """The mixture that a block is; `beside`: an MLP of its layer, which is added."""
    inner, share = shared_of(block)
    usual = inner is None or (mlp_parts(inner) is not None and beside is None)
    router = router_of(block) if usual and isinstance(block.experts, QuantisedExperts) else None
    # A router of two bytes is computed as its own code rounds it.
    if router is None or router.weight.dtype is not torch.float32:
        whole = prepare_block(block, prepare)
        return Mixture(whole.experts, shared=beside, block=whole)
    alone = copy.copy(block)
    alone._modules = {"experts": block.experts}
    return Mixture(
        prepare_block(alone, prepare).experts,
        router,
        beside if inner is None else _plain_mlp(inner, prepare, router.weight.device),
        None if share is None else prepare(share),
    )


def _projections(attention: Any) -> tuple[list[Any], Any]:
    """Layers of a latent layer's states that become one, and the second step to queries, if any."""
    rows = attention.kv_a_proj_with_mqa
    if "q_proj" in child_names(attention):
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
    norms = _head_norms(attention)
    gated = attention.q_proj.out_features == 2 * bare(_output(attention)).in_features
    return Heads(
        num_heads=attention.q_proj.out_features // attention.head_dim // (1 + gated),
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        scale=attention.scaling,
        query_norm=None if norms is None else norm_of(norms[0]),
        key_norm=None if norms is None else norm_of(norms[1]),
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
