"""Models whose mixers of tokens llmd's own decoder computes, as docs/models.md names them."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from daemon.engine.layers.fuse import recognised
from tests.zoo.build import edited
from tests.zoo.sizes import tiny_args

_LAYERS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"], "num_experts": 0},
    "kimi_linear": {
        "layer_types": ["linear_attention", "linear_attention"],  # rows are recognised when loaded
        "mlp_layer_types": ["dense", "dense"],
    },
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"],
        "num_local_experts": 0,
    },
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "mamba2": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "falcon_h1": {},
    "mamba": {},
    "falcon_mamba": {},
    "jamba": {"num_experts": 1},
}


@pytest.mark.parametrize("model_type", _LAYERS)
def test_a_model_with_states_has_parts_that_the_decoder_knows(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](**edited(tiny_args(model_type), _LAYERS[model_type]))
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config)
    assert recognised(model.base_model)


def test_what_has_other_parts_is_left_to_the_modules() -> None:
    config = CONFIG_MAPPING["gpt_neox"](**tiny_args("gpt_neox"))
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config)
    assert not recognised(model.base_model)


def test_norms_over_all_heads_at_once_are_left_to_the_modules() -> None:
    """As OLMoE has them: a head's norm has as many numbers as a head."""
    config = CONFIG_MAPPING["qwen3"](**tiny_args("qwen3"))
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config)
    assert recognised(model.base_model)
    attention = model.base_model.layers[0].self_attn
    attention.q_norm = type(attention.q_norm)(attention.q_proj.out_features)
    assert not recognised(model.base_model)
