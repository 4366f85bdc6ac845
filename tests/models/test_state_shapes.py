"""What recurrent layers keep, as it is read of configurations, against transformers' own caches."""

from typing import Any

import msgspec
import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

from daemon.engine.loading.resolve import resolved_of
from daemon.memory.layout import NO_KEYS
from daemon.memory.state_layout import CONV, SSM, StatePart
from daemon.models.shape import ModelError
from tests.zoo.build import edited
from tests.zoo.sizes import tiny_args

_HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
TYPES: dict[str, dict[str, Any]] = {
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "kimi_linear": _HYBRID,
    "granitemoehybrid": _HYBRID,
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "falcon_h1": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba": {},
    "mamba2": {},
    "falcon_mamba": {},
}


def _kept(layer: Any) -> tuple[StatePart, ...]:
    """What a layer's cache of transformers' holds, in the units of the layout."""
    found = []
    if (inputs := _held(layer, "conv_states")) is not None:
        assert inputs.dtype == torch.bfloat16
        found.append(StatePart(CONV, inputs.shape[1], inputs.shape[2] - 1))
    if (states := _held(layer, "recurrent_states")) is not None:
        numbers = states[0, 0].numel()
        found.append(StatePart(SSM, states.shape[1], numbers, states.dtype == torch.float32))
    return tuple(found)


def _held(layer: Any, name: str) -> torch.Tensor | None:
    return (getattr(layer, name, None) or {}).get(0)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_configuration_says_what_transformers_keeps(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type](**edited(tiny_args(model_type), TYPES[model_type]))
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        said = model.eval()(torch.arange(1, 8)[None], use_cache=True)
    cache = said["past_key_values" if "past_key_values" in said else "cache_params"]
    resolved = resolved_of(config)
    keys = resolved.layer_heads or (None,) * resolved.num_layers
    assert len(resolved.layer_states) == len(keys) == resolved.num_layers
    assert any(resolved.layer_states)
    for layer, parts, heads in zip(cache.layers, resolved.layer_states, keys, strict=True):
        # A cache does not say which of its numbers may lie apart.
        shared = {"num_shares": 0, "num_groups": 0, "group_units": 0}
        assert tuple(msgspec.structs.replace(part, **shared) for part in parts) == _kept(layer)
        attends = _attends(layer)
        assert attends == (resolved.num_kv_heads > 0 if heads is None else heads != NO_KEYS)


def _attends(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return keys is not None and keys.numel() > 0


def test_sizes_that_are_none_are_refused() -> None:
    config = CONFIG_MAPPING["qwen3_next"](**tiny_args("qwen3_next"))
    config.layer_types = ["linear_attention"] * config.num_hidden_layers
    config.linear_num_value_heads = 0
    with pytest.raises(ModelError, match="recurrent layers"):
        resolved_of(config)


@pytest.mark.parametrize("count", [0, 3, 8])
@pytest.mark.parametrize(
    ("model_type", "heads", "shared"),
    [
        ("qwen3_5_text", "linear_num_value_heads", "linear_num_key_heads"),
        ("mamba2", "num_heads", "n_groups"),
    ],
)
def test_heads_that_share_unevenly_are_refused(
    model_type: str, heads: str, shared: str, count: int
) -> None:
    config = CONFIG_MAPPING[model_type](**edited(tiny_args(model_type), TYPES[model_type]))
    setattr(config, heads, 4)
    setattr(config, shared, count)
    with pytest.raises(ModelError, match="heads of its recurrent layers share"):
        resolved_of(config)
