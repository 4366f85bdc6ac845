"""Variants that are single types' own: what no field's kind foretells."""

from collections.abc import Iterator
from typing import Any

from tests.zoo.axes import ROPES
from tests.zoo.own import DROP
from tests.zoo.sizes import ORIGINAL_LEN
from tests.zoo.variant import Variant

_FULL, _SLIDING = "full_attention", "sliding_attention"
_STATES_AND_ATTENTION = ["linear_attention", _FULL]

_GLOBAL = {"per_layer_config": DROP, "global_head_dim": 32, "num_global_key_value_heads": 1}
"""Heads of Gemma 4's layers that see all tokens, as published files name them."""

_ARGS: dict[str, dict[str, dict[str, Any]]] = {
    "bamba": {"states, attention": {"attn_layer_indices": [1]}},
    "jamba": {"states, attention": {"attn_layer_period": 2, "attn_layer_offset": 1}},
    "exaone4": {"full, sliding": {"layer_types": [_FULL, _SLIDING], "sliding_window": 24}},
    "gemma3_text": {"full, sliding": {"layer_types": [_FULL, _SLIDING], "sliding_window": 24}},
    "granitemoehybrid": {
        "states, attention": {"layer_types": _STATES_AND_ATTENTION},
        "attention alone": {"layer_types": [_FULL, _FULL]},
        "attention alone, rope": {
            "layer_types": [_FULL, _FULL],
            "position_embedding_type": "rope",
        },
    },
    "laguna": {"heads by layer": {"num_attention_heads_per_layer": [4, 2]}},
    "llama4_text": {
        "full attention": {"layer_types": [_FULL, _FULL]},
        "without positions": {"layer_types": [_FULL, _FULL], "no_rope_layers": [0, 0]},
        "chunks": {"layer_types": ["chunked_attention", _FULL], "no_rope_layers": [1, 0]},
        "chunks, dense": {
            "layer_types": ["chunked_attention", _FULL],
            "no_rope_layers": [1, 0],
            "moe_layers": [],
        },
    },
    "minimax_m3_vl_text": {"sparse": {"layer_types": ["minimax_m3_sparse"] * 2}},
    "opt": {
        "post norm, projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
        "projected": {"word_embed_proj_dim": 32},
    },
    "smollm3": {"a layer without positions": {"no_rope_layers": [1, 0]}},
    "gpt_neox": {"whole rotary": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}},
    "qwen3_5_moe_text": {"states, attention": {"layer_types": _STATES_AND_ATTENTION}},
    "qwen3_5_text": {
        "states, attention": {"layer_types": _STATES_AND_ATTENTION},
        "long keys": {"layer_types": _STATES_AND_ATTENTION, "linear_key_head_dim": 600},
    },
    "qwen3_next": {"states, attention": {"layer_types": _STATES_AND_ATTENTION}},
    "lfm2": {"convolution": {"layer_types": ["conv", _FULL]}},
    "qwen2": {
        "mixed windows": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 24}
    },
}

_RAW: dict[str, dict[str, dict[str, Any]]] = {
    "gemma4_text": {
        "unlike heads": {
            **_GLOBAL,
            "layer_types": [_SLIDING, _FULL],
            "sliding_window": 24,
            "attention_k_eq_v": True,
        },
        "heads of layers in parts": {
            **_GLOBAL,
            "num_hidden_layers": 6,
            "num_key_value_heads": 4,
            "layer_types": [*[_SLIDING] * 5, _FULL],
            "sliding_window": 24,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
        },
        "heads shared by layers": {
            **_GLOBAL,
            "num_global_key_value_heads": DROP,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "layer_types": [_SLIDING, _FULL] * 3,
            "sliding_window": 24,
            "use_double_wide_mlp": True,
        },
    },
    "gpt_neox": {
        "legacy rotary_pct": {"rope_parameters": DROP, "rotary_pct": 0.5, "rotary_emb_base": 500},
    },
    "phi3": {
        "legacy su": {
            "rope_parameters": DROP,
            "original_max_position_embeddings": ORIGINAL_LEN,
            "rope_scaling": {"type": "su", **ROPES["longrope"]},
        },
    },
}

MIXED = (
    "arcee", "cohere", "glm", "granite", "llama", "mistral", "nemotron", "olmo2", "phi3", "qwen2",
    "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
"""Types of which some variants are many changes at once."""


def own_variants(model_type: str) -> Iterator[Variant]:
    """The variants listed here for a type."""
    for name, args in _ARGS.get(model_type, {}).items():
        yield Variant(model_type, name, args)
    for name, raw in _RAW.get(model_type, {}).items():
        yield Variant(model_type, name, raw=raw)
