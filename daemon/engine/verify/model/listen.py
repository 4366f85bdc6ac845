"""The attention that a model needs, found by a short forward pass.

Paged attention computes plain scores of a query with all keys before it. A model that asks for
anything else (a window, a cap, sinks), not once in each layer, or with other heads than the cache
was made for, is refused by what it asks.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

from daemon.base.logs import in_a_line
from daemon.engine.verify.model.reference import attention
from daemon.models.shape import ModelShape

_LISTENING = "llmd_listening"
_UNKNOWN = {
    "attention_mask": "it makes attention masks of its own",
    "s_aux": "its attention has sinks",
    "softcap": "it caps attention scores",
    "position_bias": "it adds biases to attention scores",
    "relative_position_bias": "it adds biases to attention scores",
    "head_mask": "it masks heads",
}


class Heard(NamedTuple):
    """One call of attention."""

    layer: int | None
    heads: tuple[int, int, int, int]  # of queries, keys and values; size of a head of keys, values
    asked: dict[str, Any]


def asked_too_much(model: Any, shape: ModelShape, longest: int) -> list[str]:
    """Every reason why paged attention cannot compute the model.

    `longest`: tokens of the longest sequence that will be served.
    """
    calls = list[Heard]()
    AttentionInterface.register(_LISTENING, partial(_heard, calls=calls))
    device = model.device
    try:
        with attention(model, _LISTENING):
            output = model(
                input_ids=torch.ones((1, 2), dtype=torch.int64, device=device),
                position_ids=torch.arange(2, device=device).unsqueeze(0),
                use_cache=False,
                logits_to_keep=torch.zeros(1, dtype=torch.int64, device=device),
            )
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        return [f"its modelling code does not take one row of many tokens: {in_a_line(error)}"]
    reasons = _reasons(calls, shape, longest)
    if output.logits.shape[:2] != (1, 1):
        reasons.append("it does not give the logits of chosen tokens alone")
    return reasons


def _heard(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *_scale: Any,
    calls: list[Heard],
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for transformers that answers zeros."""
    heads = (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    asked["attention_mask"] = attention_mask
    calls.append(Heard(getattr(module, "layer_idx", None), heads, asked))
    batch, num_heads, num_tokens, _ = query.shape
    return query.new_zeros((batch, num_tokens, num_heads, value.shape[3])), None


def _reasons(calls: list[Heard], shape: ModelShape, longest: int) -> list[str]:
    expected = (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim)
    reasons = []
    layers = sorted(-1 if call.layer is None else call.layer for call in calls)
    if layers != list(range(shape.num_layers)):
        reasons.append(
            f"its {shape.num_layers} layers ask for attention {len(calls)} times, not once each"
        )
    for call in calls:
        if call.heads != expected:
            heads, kv_heads, key_dim, value_dim = call.heads
            reasons.append(
                f"its attention has {heads} heads ({kv_heads} of keys) of {key_dim} and "
                f"{value_dim}, where its configuration says {shape.num_heads} "
                f"({shape.num_kv_heads}) of {shape.head_dim}"
            )
        reasons += [why for name, why in _UNKNOWN.items() if call.asked.get(name) is not None]
        window = call.asked.get("sliding_window")
        if isinstance(window, int) and 0 < window < longest:
            reasons.append(f"it attends through a sliding window of {window} tokens")
        if call.asked.get("is_causal") is False:
            reasons.append("its tokens also see those after them, as an encoder's do")
    return reasons
