"""Fields of a config.json that its type's code does not read: harmless, or refused by name.

Other programs write fields of their own, which say nothing of how a model computes. A field whose
name speaks of that is refused, unless its value says what the code does anyway; what is left is
noted, so that nothing of a file is dropped without a word.
"""

import re
from collections.abc import Iterator
from typing import Any

from daemon.models.resolved import Resolved

_FULL = "full_attention"
_SCALED = frozenset({"factor", "original_max_position_embeddings"})
ROPE_FIELDS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": _SCALED,
    "proportional": _SCALED | {"partial_rotary_factor"},
    "llama3": _SCALED | {"low_freq_factor", "high_freq_factor"},
    "yarn": _SCALED
    | {"attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate"},
}
"""Parameters of rotary positions, by kind, beside those that all have."""
ROPE_COMMON = frozenset({"rope_type", "type", "rope_theta", "factor", "finetuned"})
_SCALES = (
    *("logit_scale", "logits_scaling", "logit_multiplier", "residual_multiplier"),
    *("residual_scale", "scale_depth", "embedding_multiplier", "embedding_scale", "scale_emb"),
    *("scale_embedding", "attn_scale", "attention_scale", "routed_scaling_factor"),
    *("partial_rotary_factor", "rotary_pct", "rotary_percent"),
)
_WINDOWS = ("sliding_window", "attention_window", "window_size")
_ONES = ("num_experts", "n_experts", "num_local_experts", "n_routed_experts", "scale_attn_weights")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(_SCALES, (1,)),
    **dict.fromkeys(_WINDOWS, (0, -1)),
    **dict.fromkeys(_ONES, (0, 1)),
    **dict.fromkeys(("is_causal", "causal", "norm_topk_prob", "no_bias"), (True,)),
    **dict.fromkeys(("attention_type", "attn_type"), ("full", _FULL, "causal", "default")),
    **dict.fromkeys(("position_embedding_type", "position_encoding"), ("rope", "rotary")),
    "scoring_func": ("softmax",),
}
"""Values with which fields change nothing, beside null, false, 0 and what is empty."""
_ALWAYS: dict[str, dict[str, Any]] = {
    "minimax_m2": {
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
    },
}
"""Values that say what a type's code does anyway, by type and by field of its published files."""
_COMPUTES = re.compile(
    r"norm|(^|_)act(ivation)?s?(_|$)|act_fn|bias|sink|expert|moe|rope|rotary|rotate|alibi|(^|_)nope"
    r"|window|attn|attention|soft_?cap|clip|limit|scal(e|ing)|multiplier|residual|causal|direction"
    r"|heads|n_head|swiglu|glu(_|$)|(^|_)gat(e|ed|ing)(_|$)|(^|_)conv(_|$|\d)|ssm|mamba|recurren|lora|router"
    r"|parallel|position_e|scoring|layer_types|dim_model_base|query_pre|qk_|qkv|mup"
)
"""Names of fields that speak of how a model computes."""
_HARMLESS = re.compile(
    r".*(drop|initializer|init_|_init|std(_|$)|loss|flash|_impl|implementation|checkpoint|sdpa).*"
    r"|(output|summary|mtp|nextn|num_nextn|tokenizer|unsloth|transformers|vision|audio|mm)_.*"
    r"|_.*|auto_map|hidden_act_dtype|use_cache|use_bfloat16|torchscript|tf_legacy_.*|quantization"
    r"|pretraining_tp|tensor_parallel.*|parallelism|add_cross_attention|cross_attention_hidden_size"
    r"|norm_topk_prob|model_max_length|max_length|problem_type|finetuning_task|architectures"
    r"|model_type|dtype|torch_dtype|license|language"
)
"""Names that only training, other programs or parts beside a causal model read."""
_UNTOLD = re.compile(
    r"_.*|auto_map|unsloth_.*|transformers.*|model_type|architectures|tokenizer_.*"
    r"|(unk|sep|cls|mask)_token_id"
)
"""Frequent names without a meaning here, which the notes leave out."""
_READ_HERE = frozenset({"quantization_config"})
"""Names that a type's code does not ask for and llmd reads itself."""
_LIKE_OTHERS = (
    (re.compile(r"act(ivation)?(_|$)|act_fn"), re.compile(r"hidden_act.*|activation_f.*")),
    (re.compile(r"eps(ilon)?$"), re.compile(r".*eps(ilon)?")),
    (re.compile(r"heads|n_head"), re.compile(r"num_(attention|key_value)_heads")),
    (re.compile(r"(attn|attention|qkv|mlp)_bias$"), re.compile(r".*_bias")),
)
"""Fields that repeat a read field under another name, if they have its value."""
_BASES = ("rope_theta", "rotary_base", "rotary_emb_base", "rope_base", "rope_freq_base")
_NORMS = {"rms": "rms_norm_eps", "layer": "layer_norm"}
"""The field that identifies a kind of norm: the other kind does not have it."""


def unread_refusals(resolved: Resolved) -> Iterator[str]:
    """Fields about how the model computes whose values differ from what its code does."""
    for name, value in resolved.unread.items():
        computes = _COMPUTES.search(name) and not _HARMLESS.fullmatch(name)
        if computes and not _says_nothing(name, value, resolved):
            yield f"{name} is {str(value)[:60]} in its config.json, which its code does not read"


def unread_notes(resolved: Resolved) -> list[str]:
    """The names of the other fields that nothing here reads."""
    refused = {reason.split(" ", 1)[0] for reason in unread_refusals(resolved)}
    return [
        name
        for name, value in resolved.unread.items()
        if name not in refused | _READ_HERE
        and not _UNTOLD.fullmatch(name)
        and not (_COMPUTES.search(name) and _says_nothing(name, value, resolved))
    ]


def _says_nothing(name: str, value: Any, resolved: Resolved) -> bool:
    """Whether the value of a field that the code does not read would change nothing."""
    if name == "is_causal":
        return value is not False
    if value in (None, False, "", [], {}, *_NEUTRAL.get(name, ())):
        return True
    if name in (always := _ALWAYS.get(resolved.model_type, {})):
        return bool(value == always[name])
    if name == "shared_moe_mode":  # of an MLP beside experts, where there is one
        return not resolved.fields.get("shared_intermediate_size")
    if name in _WINDOWS:
        off = resolved.fields.get("use_sliding_window") is False
        return off or (isinstance(value, int) and value >= resolved.context_len)
    read = {key: value for key, value in resolved.fields.items() if key not in resolved.unread}
    if isinstance(value, str) and "norm" in name:
        kinds = [prefix for kind, prefix in _NORMS.items() if kind in value.lower()]
        return any(key.startswith(prefix) for prefix in kinds for key in read)
    for names, others in _LIKE_OTHERS:
        if names.search(name):
            return value in [other for key, other in read.items() if others.fullmatch(key)]
    own = {
        "dim_model_base": [resolved.hidden_size],
        "query_pre_attn_scalar": [resolved.head_dim],
        "rotary_dim": [resolved.head_dim],
        "attention_multiplier": [resolved.head_dim**-0.5] if resolved.head_dim else [],
        "layer_types": [[_FULL] * resolved.num_layers],
        "attn_type_list": [[1] * resolved.num_layers],  # zero: the layer's attention is linear
        "no_rope_layers": [[1] * resolved.num_layers],  # one: the layer has positions
    }
    if name == "partial_rotary_factor" and resolved.fields.get("kv_lora_rank"):
        # A part of each head turns anyway, by a field of its own.
        sizes = [resolved.fields.get(f"qk_{part}_head_dim") for part in ("rope", "nope")]
        whole = sum(size for size in sizes if isinstance(size, int))
        return isinstance(sizes[0], int) and whole > 0 and bool(value == sizes[0] / whole)
    if name in _BASES:
        return value in [rope.parameters.get("rope_theta") for rope in resolved.ropes]
    return value in own.get(name, ())
