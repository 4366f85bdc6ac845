"""What single types need beside the tiny sizes that go by a field's name."""

from typing import Any

DROP = object()
"""Of a field or of a key of config.json: it is left out."""

OWN: dict[str, dict[str, Any]] = {
    "dots3_note_text": {"num_key_value_heads": 4},
    "gpt_bigcode": {"num_key_value_heads": DROP},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "reformer": {"is_decoder": True},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}

NEEDED: dict[str, dict[str, Any]] = {
    # Its own defaults are refused by its own check.
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text"}},
}
