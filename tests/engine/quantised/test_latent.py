"""Models with latent rows whose weights are in blocks: the greedy text of the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config

from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import requantise
from daemon.engine.loading.resolve import shape_here
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import read_json
from daemon.models.weights import folder_layers
from tests.engine.quantised.five_models import Model, checkpoint, save_plain
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


CONFIG: dict[str, Any] = {**CONFIGS["deepseek_v3"].to_dict(), **SIZES}


def check(folder: Path, cache: Path) -> None:
    """The fused decoder serves a folder, with the text of its numbers; mixtures stay packed."""
    engine = engine_of(folder, cache)
    assert engine.model.fused
    check_greedy_text(engine, folder)
    loaded: Any = load_model(folder, "float32", torch.device("cpu"))
    assert {QuantisedLinear, QuantisedExperts} <= {type(module) for module in loaded.modules()}


@pytest.mark.parametrize("form", ["FP8, blocks", "GPTQ, in an order"])
def test_a_projection_in_blocks_is_unpacked(form: str, tmp_path: Path) -> None:
    """Of a DeepSeek V2, whose queries are projected in one step."""
    said = {name: CONFIG[name] for name in CONFIG if name not in ("model_type", "rope_parameters")}
    config = DeepseekV2Config(**{**said, "q_lora_rank": None, "topk_method": "greedy"})
    checkpoint(Model(config, "", False, (4, 4)), form, tmp_path / "m")
    shape = shape_here(tmp_path / "m")
    projections = 3 * 4 * (16 + 32) * 64
    fields = read_json(tmp_path / "m" / "config.json")
    layers = folder_layers(tmp_path / "m", read_quantisation(tmp_path / "m", fields))
    in_blocks = sum(layer.rows * layer.columns for layer in layers.values())
    assert shape.packed_params == in_blocks - projections > 0
    check(tmp_path / "m", tmp_path / "trials")


def test_weights_that_are_unpacked_anyway_are_not_rounded(tmp_path: Path) -> None:
    torch.manual_seed(3)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(DeepseekV3Config(**CONFIG), attn_implementation="eager").float()
    folder = tmp_path / "made"
    requantise(save_plain(model.eval(), tmp_path / "plain"), folder, "int4", lambda _share: None)
    loaded: Any = load_model(folder, "float32", torch.device("cpu"))
    for name, weight in model.state_dict().items():
        if name.endswith("kv_b_proj.weight"):
            assert torch.equal(loaded.state_dict()[name], weight)
    check(folder, tmp_path / "trials")
