"""Which layers of a model ranks share, by a type's configuration, without torch.

transformers says it of many families (`base_model_tp_plan`); a few more are named here. A plan has
the names of modules within the base model, with a star for the number of a layer: "colwise" are
layers cut by rows, "rowwise" by columns, "moe_tp_experts" by their inner width.
"""

from typing import Any

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
_OWN_PLANS = {"opt": _OPT, "gpt_oss": _GPT_OSS, "lfm2": _LFM2, "lfm2_moe": _LFM2}
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
