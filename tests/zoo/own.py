"""The needs of single types beside the tiny sizes, which go by a field's name."""

from typing import Any

DROP = object()
"""Marks a field or a key of config.json that is left out."""

_GEMMA4_DRAFT = {
    "model_type": "gemma4_text",
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 2,
}

OWN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "layer_types": ["full_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            },
        },
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 0.9},
        "ffn_config": {
            "ffn_act_fn": {"name": "silu"},
            "ffn_hidden_size": 96,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "dots3_note_text": {"num_key_value_heads": 4},
    "gemma4_assistant": {"text_config": _GEMMA4_DRAFT},
    "gpt_bigcode": {"num_key_value_heads": DROP},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["hybrid", "mamba"]},
    "zamba2": {"layers_block_type": ["hybrid", "mamba"]},
    "zaya": {"num_experts_per_tok": 1},
}

NEEDED: dict[str, dict[str, Any]] = {
    # Its own defaults are refused by its own check.
    "gemma4_assistant": {"text_config": _GEMMA4_DRAFT},
}
