"""Each operator of a decoder alone, through all layers (Vidur section 4.3: the profiler).

Operators are those of three kinds: token-level ones, whose time depends on the number of tokens;
attention, on the tokens before them too; and communication, of which one device has none.
"""

from collections.abc import Callable

import torch

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.forward import Alone
from daemon.engine.layers.mlp import GatedMlp
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
    projected = layers[0].query_key_value(normed)
    attended = normed.new_zeros(len(tokens), layers[0].heads.width)
    plain = [(layer, layer.heads) for layer in layers if isinstance(layer.heads, Heads)]

    def norm() -> None:
        for layer in layers:
            ops.norm(states, normed, layer.input_norm, layer.mlp_output_norm)
            ops.norm(states, normed, layer.mlp_norm, layer.output_norm)
        ops.norm(states, normed, decoder.norm)

    def norm_with_heads() -> None:
        norm()
        _norm_heads(decoder, projected)

    def rope() -> None:
        for layer, own in plain:
            turned = own.num_heads + own.num_kv_heads
            split = projected.view(len(tokens), turned + own.num_kv_heads, own.head_dim)
            ops.rotate(split[:, :turned], *angles[layer.rotary])

    def attention() -> None:
        for index, (_, own) in enumerate(plain):
            split = projected.view(len(tokens), -1, own.head_dim)
            query, key, value = split.split((own.num_heads, *[own.num_kv_heads] * 2), 1)
            paged(index, query, key, value, own.scale, own.variant)

    def fused_attention() -> None:
        for index, layer in enumerate(layers):
            layer.heads.attend(ops, paged, index, projected, angles[layer.rotary])

    found: dict[str, Callable[[], object]] = {
        "embedding": lambda: decoder.embeddings(tokens),
        "norm": norm,
        "query_key_value": lambda: [layer.query_key_value(normed) for layer in layers],
        "attention": fused_attention,
        "output": lambda: [layer.output(attended) for layer in layers],
    }
    # Else queries and keys turn as they are written, or are made of rows.
    if type(ops).attend is Ops.attend and len(plain) == len(layers):
        found |= {"norm": norm_with_heads, "rope": rope, "attention": attention}
    found |= _of_mlps(decoder, normed)
    if num_sampled:
        sampled = normed[:num_sampled]
        found["head"] = lambda: decoder.head(sampled)
    return found


def _norm_heads(decoder: Decoder, projected: torch.Tensor) -> None:
    """Norms of queries and keys in all layers, of `projected` as a layer's projection gives it."""
    for own in (layer.heads for layer in decoder.layers if isinstance(layer.heads, Heads)):
        split = projected.view(len(projected), -1, own.head_dim)
        query, key, _ = split.split((own.num_heads, *[own.num_kv_heads] * 2), 1)
        for part, norm in ((query, own.query_norm), (key, own.key_norm)):
            if norm is not None:
                decoder.ops.norm_heads(part, norm)


def _of_mlps(decoder: Decoder, normed: torch.Tensor) -> dict[str, Callable[[], object]]:
    """The operators behind attention: of gated MLPs by parts, of mixtures whole."""
    ops = decoder.ops
    gated = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, GatedMlp)]
    others = [layer.mlp for layer in decoder.layers if not isinstance(layer.mlp, GatedMlp)]
    found: dict[str, Callable[[], object]] = {}
    if gated:
        wide = gated[0].gate_up(normed)
        inner = ops.gated(wide, gated[0].activation)
        found["gate_up"] = lambda: [mlp.gate_up(normed) for mlp in gated]
        found["activation"] = lambda: [ops.gated(wide, mlp.activation) for mlp in gated]
        found["down"] = lambda: [mlp.down(inner) for mlp in gated]
    if others:
        found["experts"] = lambda: [mlp(normed, ops) for mlp in others]
    return found
