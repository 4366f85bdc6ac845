"""Which layers of a model ranks share, by a type's configuration, without torch.

transformers says it of many families (`base_model_tp_plan`); a few more are named here. A plan has
the names of modules within the base model, with a star for the number of a layer: "colwise" are
layers cut by rows, "rowwise" by columns, "moe_tp_experts" by their inner width.
"""

from typing import Any

STATES = "by heads of states"
"""A kind of module in a plan: a recurrent layer, if it is one."""
HALVES = "packed_colwise"
"""A kind of layer in a plan: cut by rows, gates and what they gate below each other."""
TO_HEADS = ("q_proj", "q_b_proj", "kv_b_proj")
"""Layers of attention with latent rows that have rows for each head."""

_GPT_OSS = {
    **dict.fromkeys((f"layers.*.self_attn.{part}_proj" for part in "qkv"), "colwise"),
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
}
_OPT = {
    **dict.fromkeys((f"decoder.layers.*.self_attn.{part}_proj" for part in "qkv"), "colwise"),
    "decoder.layers.*.self_attn.out_proj": "rowwise",
    "decoder.layers.*.fc1": "colwise",
    "decoder.layers.*.fc2": "rowwise",
}
_LFM2 = {
    **dict.fromkeys((f"layers.*.self_attn.{part}_proj" for part in "qkv"), "colwise"),
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.feed_forward.w1": "colwise",
    "layers.*.feed_forward.w3": "colwise",
    "layers.*.feed_forward.w2": "rowwise",
}


def _heads_in(module: str) -> dict[str, str]:
    """The plan of plain attention, a module of each layer."""
    first = dict.fromkeys((f"layers.*.{module}.{part}_proj" for part in "qkv"), "colwise")
    return {**first, f"layers.*.{module}.o_proj": "rowwise"}


def _gated_in(module: str) -> dict[str, str]:
    """The plan of a gated MLP, a module of each layer."""
    first = dict.fromkeys((f"layers.*.{module}.{part}_proj" for part in ("gate", "up")), "colwise")
    return {**first, f"layers.*.{module}.down_proj": "rowwise"}


def _two_in(module: str) -> dict[str, str]:
    """The plan of an MLP without gates, a module of each layer."""
    return {f"layers.*.{module}.up_proj": "colwise", f"layers.*.{module}.down_proj": "rowwise"}


_MIXERS_ALONE = {"layers.*.mixer": STATES}
_JAMBA = {**_heads_in("self_attn"), **_gated_in("feed_forward"), "layers.*.mamba": STATES}
_GRANITE_H = {
    **_heads_in("self_attn"),
    "layers.*.mamba": STATES,
    "layers.*.shared_mlp.input_linear": HALVES,
    "layers.*.shared_mlp.output_linear": "rowwise",
}
_NEMOTRON_H = {
    **_heads_in("mixer"),
    **_two_in("mixer"),
    **_two_in("mixer.shared_experts"),
    "layers.*.mixer": STATES,
}
_OWN_PLANS = {
    "opt": _OPT,
    "gpt_oss": _GPT_OSS,
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2,
    "kimi_linear": {"layers.*.self_attn": STATES},
    "bamba": _JAMBA,
    "jamba": _JAMBA,
    "granitemoehybrid": _GRANITE_H,
    "nemotron_h": _NEMOTRON_H,
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _MIXERS_ALONE),
}
"""Plans of types that transformers has none for, or none of all layers."""
_LATENT_PLAN = {
    **dict.fromkeys((f"layers.*.self_attn.{part}" for part in TO_HEADS), "colwise"),
    "layers.*.self_attn.o_proj": "rowwise",
}
"""Attention with latent rows: these are the same on all ranks, heads are made of them."""


def plan_of(config: Any) -> dict[str, str]:
    """How each kind of layer is cut; empty where nobody says it."""
    own = _OWN_PLANS.get(config.model_type) or {}
    plan = {**own, **(getattr(config, "base_model_tp_plan", None) or {})}
    return {**plan, **_LATENT_PLAN} if plan and getattr(config, "kv_lora_rank", None) else {**plan}
