"""The sizing table's models of unlike layers are those that transformers builds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.sizing import MODELS
from daemon.engine.loading.resolve import resolve_here

_GEMMA_4: dict[str, Any] = {"model_type": "gemma4_text", "vocab_size": 262_144, "head_dim": 256}
_LARGE = {
    **_GEMMA_4,
    "attention_k_eq_v": True,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32},
    "gpt-oss-120b": {"model_type": "gpt_oss", "num_hidden_layers": 36, "num_local_experts": 128},
    "GLM-4.7-Flash": {"model_type": "glm4_moe_lite"},
    "Gemma-4-E4B": {
        **_GEMMA_4,
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 42,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
        "sliding_window": 512,
    },
    "Gemma-4-26B-A4B": {
        **_LARGE,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "Gemma-4-31B": {
        **_LARGE,
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_row_has_the_layers_and_parameters_that_transformers_builds(
    name: str, tmp_path: Path
) -> None:
    fields, row = PUBLISHED[name], MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    resolved = resolve_here(tmp_path)
    alike = ("model_type", "num_layers", "num_heads", "hidden_size", "vocab_size", "context_len")
    assert [getattr(row, key) for key in alike] == [getattr(resolved, key) for key in alike]
    assert row.windows == resolved.windows
    if resolved.layer_heads:
        assert row.layer_heads == resolved.layer_heads
    else:
        heads = (resolved.num_kv_heads, resolved.head_dim, -1)
        assert {(own.num_kv_heads, own.head_dim, own.source) for own in row.layer_heads} == {heads}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert row.num_params == model.num_parameters()
    experts = ((key, own) for key, own in model.named_parameters() if "experts" in key)
    packed = sum(own.numel() for key, own in experts if "bias" not in key)
    assert row.packed_params == (packed if name.startswith("gpt-oss") else 0)
