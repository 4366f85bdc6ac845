"""Each operator of a decoder alone, through all layers (Vidur section 4.3: the profiler).

Operators are those of three kinds: token-level ones, whose time depends on the number of tokens;
attention, on the tokens before them too; and communication, of which one device has none.
"""

from collections.abc import Callable, Sequence

import torch

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.decoder import Decoder, DecoderLayer
from daemon.engine.layers.forward import Alone
from daemon.engine.layers.mlp import DenseMlp, Mixture
from daemon.engine.layers.ops import Heads, Ops


def operators_alone(
    decoder: Decoder,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    num_sampled: int,
    paged: PagedAttention,
) -> Alone:
    """The operators of a step of `tokens` int64 [T], of which so many are sampled, on states that
    mean nothing. `paged` is written to at each call.
    """
    ops, layers = decoder.ops, decoder.layers
    angles = [rotary.angles(positions) for rotary in decoder.rotary]
    states = decoder.embeddings(tokens)
    normed = ops.norm(states, None, decoder.norm)
    projected, attended = _of_layers(decoder, normed)
    plain = _plain(layers)

    def norm() -> None:
        for layer in layers:
            ops.norm(states, normed, layer.input_norm, layer.mlp_output_norm)
            if layer.mlp_norm is not None:
                ops.norm(states, normed, layer.mlp_norm, layer.output_norm)
        ops.norm(states, normed, decoder.norm)

    def norm_with_heads() -> None:
        norm()
        _norm_heads(decoder, projected)

    def rope() -> None:
        for layer, own in plain:
            turned = own.num_heads + own.num_kv_heads
            split = projected[_shape(layer)].view(len(tokens), -1, own.head_dim)
            ops.rotate(split[:, :turned], *angles[layer.rotary])

    def attention() -> None:
        for layer, own in plain:
            split = projected[_shape(layer)].view(len(tokens), -1, own.head_dim)
            query, key, value = split.split((own.num_heads, *[own.num_kv_heads] * 2), 1)
            paged(layer.number, query, key, value, own.scale, own.variant)

    def fused_attention() -> None:
        for layer in layers:
            own = projected[_shape(layer)]
            layer.heads.attend(ops, paged, layer.number, own, angles[layer.rotary])

    found: dict[str, Callable[[], object]] = {
        "embedding": lambda: decoder.embeddings(tokens),
        "norm": norm,
        "query_key_value": lambda: [layer.query_key_value(normed) for layer in layers],
        "attention": fused_attention,
        "output": lambda: [layer.output(attended[_shape(layer)]) for layer in layers],
    }
    # Else queries and keys turn as they are written, or are made of rows.
    if type(ops).attend is Ops.attend and len(plain) == len(layers):
        found |= {"norm": norm_with_heads, "rope": rope, "attention": attention}
    found |= _of_mlps(decoder, normed)
    if num_sampled:
        sampled = normed[:num_sampled]
        found["head"] = lambda: decoder.head(sampled)
    return found


def _plain(layers: Sequence[DecoderLayer]) -> list[tuple[DecoderLayer, Heads]]:
    """The layers whose projection is queries, keys and values alone, with their heads."""
    heads = ((layer, layer.heads) for layer in layers)
    return [(layer, own) for layer, own in heads if isinstance(own, Heads) and not own.gated]


_Shape = tuple[int, int, int]
_ByShape = dict[_Shape, torch.Tensor]
"""States by the shape of a layer's heads."""


def _shape(layer: DecoderLayer) -> _Shape:
    heads = layer.heads
    if isinstance(heads, Heads):
        return heads.num_heads, heads.num_kv_heads, heads.head_dim
    return heads.width, 0, 0


def _of_layers(decoder: Decoder, normed: torch.Tensor) -> tuple[_ByShape, _ByShape]:
    """States as projections give them, and as attention does."""
    projected: _ByShape = {}
    attended: _ByShape = {}
    for layer in decoder.layers:
        if _shape(layer) not in projected:
            projected[_shape(layer)] = layer.query_key_value(normed)
            attended[_shape(layer)] = normed.new_zeros(len(normed), layer.heads.width)
    return projected, attended


def _norm_heads(decoder: Decoder, projected: _ByShape) -> None:
    """Norms of queries, keys and values in all layers, of what their projections give."""
    for layer in decoder.layers:
        own, states = layer.heads, projected[_shape(layer)]
        if not isinstance(own, Heads):
            continue
        split = states.view(len(states), -1, own.head_dim)
        query, key, value = split.split((own.num_heads, *[own.num_kv_heads] * 2), 1)
        norms = own.query_norm, own.key_norm, own.value_norm
        for part, norm in zip((query, key, value), norms, strict=True):
            if norm is not None:
                decoder.ops.norm_heads(part, norm)


def _of_mlps(decoder: Decoder, normed: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The operators behind attention: of MLPs by parts, of mixtures whole."""
    ops = decoder.ops
    plain = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, DenseMlp)]
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)]
    found: dict[str, Callable[[], object]] = {}
    if plain:
        wide = plain[0].gate_up(normed)
        inner = ops.activated(wide, plain[0].activation)
        found["gate_up"] = lambda: [mlp.gate_up(normed) for mlp in plain]
        found["activation"] = lambda: [ops.activated(wide, mlp.activation) for mlp in plain]
        found["down"] = lambda: [mlp.down(inner) for mlp in plain]
    if mixtures:
        found["experts"] = lambda: [mlp(normed, ops) for mlp in mixtures]
    return found
