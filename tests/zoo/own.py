"""What single types need beside the tiny sizes that go by a field's name."""

from typing import Any

DROP = object()
"""Of a field or of a key of config.json: it is left out."""

_GEMMA4_DRAFT = {
    "model_type": "gemma4_text",
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 2,
}

OWN: dict[str, dict[str, Any]] = {
    "dots3_note": {
        "text_config": {"model_type": "dots3_note_text", "vocab_size": 193, "hidden_size": 64},
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
