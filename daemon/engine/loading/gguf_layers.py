"""GGUF's fields of unlike layers and of recurrent ones, as transformers' configurations have them.

A file says with a number for each layer which of them are recurrent: those without heads of keys.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from daemon.models.shape import ModelError

Own = Mapping[str, Any]
"""An architecture's fields, by what comes behind its name."""
_FULL, _LINEAR = "full_attention", "linear_attention"
KEY_HEADS = "attention.head_count_kv"
INTERVAL, RECURRENT = "full_attention_interval", "attention.recurrent_layers"
CONVOLUTION, INNER, STATE = "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"
HEADS, GROUPS = "ssm.time_step_rank", "ssm.group_count"
OF_STATES = (CONVOLUTION, INNER, STATE, HEADS, GROUPS)
"""Fields of recurrent layers with heads."""
_INTERVAL = 4
"""llama.cpp's, where a file does not say."""


class LayerFields(NamedTuple):
    """The settings that some fields mean, and the value that counts for a field of all layers."""

    settings: dict[str, Any]
    says: dict[str, Any]


def read_delta_net(own: Own, num_layers: int) -> LayerFields:
    """Qwen's gated delta nets beside attention. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    recurrent = own.get(RECURRENT)
    if recurrent is None:
        interval = own.get(INTERVAL, _INTERVAL)
        recurrent = [bool((layer + 1) % interval) for layer in range(num_layers)]
    if not isinstance(recurrent, list) or not num_layers <= len(recurrent) <= own["block_count"]:
        raise ModelError(f"{RECURRENT} is no list of {own['block_count']} layers")
    if all(recurrent[:num_layers]) or not any(recurrent[:num_layers]):
        raise ModelError(f"{INTERVAL} or {RECURRENT} leave {num_layers} layers all alike")
    sizes = {
        "linear_conv_kernel_dim": own[CONVOLUTION],
        "linear_key_head_dim": own[STATE],
        "linear_num_key_heads": own[GROUPS],
        "linear_num_value_heads": own[HEADS],
        "linear_value_head_dim": _divided(own, INNER, own[HEADS]),
    }
    if sizes["linear_value_head_dim"] != own[STATE]:
        raise ModelError(
            f"{STATE} is {own[STATE]}, and heads have {sizes['linear_value_head_dim']}"
        )
    if own[HEADS] % own[GROUPS]:
        raise ModelError(f"{HEADS} is {own[HEADS]}, and {GROUPS} {own[GROUPS]}: not shared evenly")
    kinds = [_LINEAR if states else _FULL for states in recurrent[:num_layers]]
    return LayerFields({**sizes, "layer_types": kinds}, {})


def read_granite_hybrid(own: Own, num_layers: int) -> LayerFields:
    """Granite 4's Mamba 2 beside attention, with or without experts. Raises ModelError."""
    _check_above_0(own, *OF_STATES)
    kinds, heads = _kinds_by_key_heads(own, num_layers)
    experts = own.get("expert_count", 0)
    shared = "expert_shared_feed_forward_length"
    width = own.get(shared) if experts else own.get("feed_forward_length")
    settings = {
        "hidden_size": own["embedding_length"],
        "layer_types": kinds,
        "num_key_value_heads": heads,
        "num_local_experts": experts,
        "shared_intermediate_size": width,
        "mamba_n_heads": own[HEADS],
        "mamba_n_groups": own[GROUPS],
        "mamba_d_state": own[STATE],
        "mamba_d_conv": own[CONVOLUTION],
        "mamba_d_head": _divided(own, INNER, own[HEADS]),
        "mamba_expand": _divided(own, INNER, own["embedding_length"]),
        "position_embedding_type": "rope" if own.get("rope.scaling.finetuned", True) else None,
    }
    return LayerFields(settings, {KEY_HEADS: heads, shared: width})


def _kinds_by_key_heads(own: Own, num_layers: int) -> tuple[list[str], int]:
    """The layers' kinds, recurrent where they have no heads of keys, and how many heads others
    have.
    """
    each = own.get(KEY_HEADS)
    heads = each if isinstance(each, list) else [each] * num_layers
    if len(heads) != num_layers:
        raise ModelError(
            f"{KEY_HEADS} is a list of {len(heads)}, and there are {num_layers} layers"
        )
    counts = {count for count in heads if count}
    if len(counts) != 1:
        raise ModelError(f"{KEY_HEADS} is {heads[:8]}: not one number for all layers that attend")
    return [_FULL if count else _LINEAR for count in heads], counts.pop()


def _check_above_0(own: Own, *names: str) -> None:
    for name in names:
        if type(own[name]) is not int or own[name] < 1:
            raise ModelError(f"{name} is {own[name]!r}, and must be a whole number above 0")


def _divided(own: Own, name: str, parts: int) -> int:
    """A field's number by what it is a multiple of."""
    if own[name] % parts:
        raise ModelError(f"{name} is {own[name]}, which is no multiple of {parts}")
    return int(own[name] // parts)
