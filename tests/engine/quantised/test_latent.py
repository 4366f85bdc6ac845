"""Models with latent rows whose weights are in blocks: the greedy text of the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config

from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import requantise
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear
from tests.engine.quantised.five_models import save_plain
from tests.engine.quantised.test_experts import engine_of
from tests.engine.quantised.test_models import check_greedy_text
from tests.engine.tiny import CONFIGS

SIZES: dict[str, Any] = {
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "initializer_range": 0.2,
}


@pytest.mark.parametrize("form", ["int4", "fp8"])
def test_answers_are_those_of_the_same_numbers(form: str, tmp_path: Path) -> None:
    config = DeepseekV3Config(**{**CONFIGS["deepseek_v3"].to_dict(), **SIZES})
    torch.manual_seed(3)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(config, attn_implementation="eager").float().eval()
    folder = tmp_path / "made"
    requantise(save_plain(model, tmp_path / "plain"), folder, form, lambda _share: None)
    engine = engine_of(folder, tmp_path / "trials")
    assert engine.model.fused
    check_greedy_text(engine, folder)
    loaded: Any = load_model(folder, "float32", torch.device("cpu"))
    assert {QuantisedLinear, QuantisedExperts} <= {type(module) for module in loaded.modules()}
