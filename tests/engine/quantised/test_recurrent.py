"""Recurrent layers over weights in blocks: their projections stay packed, and answers are near."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedConfig, Qwen3_5TextConfig

from daemon.engine.layers.recurrent.functions import DirectLinear
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import requantise
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.verify.model.reading import check_reading
from daemon.models.shape import ModelError
from tests.engine.quantised import five_models
from tests.zoo.build import randomise
from tests.zoo.oracle import distances, reference, serve_shortly
from tests.zoo.sizes import CONTEXT_LEN, VOCAB_SIZE

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen3_5": Qwen3_5TextConfig(
        **_COMMON,
        intermediate_size=192,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LEN,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
    ),
    "mamba": MambaConfig(**_COMMON, state_size=16, time_step_rank=32),
}
PACKED = {"qwen3_5": "linear_attn.in_proj_qkv", "mamba": "mixer.in_proj"}


def test_a_weight_that_is_read_outside_may_be_held_narrower_than_its_file_has_it(
    tmp_path: Path,
) -> None:
    loader: Any = AutoModelForCausalLM
    loader.from_config(CONFIGS["mamba"]).float().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    loaded = load_model(tmp_path, "float32", torch.device("cpu"), weight_dtype="bfloat16")
    assert check_reading(loaded, tmp_path)
    direct = next(module for module in loaded.modules() if isinstance(module, DirectLinear))
    with torch.no_grad():
        direct.weight[len(direct.weight) // 2] += 1.0
    with pytest.raises(ModelError, match=r"dt_proj\.weight was not loaded"):
        check_reading(loaded, tmp_path)


@pytest.mark.parametrize("form", ["W8A8", "FP8, rows"])
def test_a_weight_that_is_read_outside_may_lie_in_blocks_of_its_name(
    form: str, tmp_path: Path
) -> None:
    """Its file's numbers are not compared with what they mean."""
    model = five_models.Model(CONFIGS["mamba"], "", False, (4, 2))
    five_models.checkpoint(model, form, tmp_path / "m")
    loaded = load_model(tmp_path / "m", "float32", torch.device("cpu"))
    assert any(isinstance(module, DirectLinear) for module in loaded.modules())
    assert check_reading(loaded, tmp_path / "m")


@pytest.mark.parametrize("name", CONFIGS)
def test_projections_stay_packed(name: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    packed.mkdir()
    torch.manual_seed(1)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(CONFIGS[name], attn_implementation="eager").float()
    with torch.no_grad():
        randomise(model)
    model.save_pretrained(plain)
    (plain / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    requantise(plain, packed, "int8", lambda _share: None)
    loaded = load_model(packed, "float32", torch.device("cpu"))
    assert any(each.endswith(PACKED[name]) for each, _ in quantised_layers(loaded))
    direct = [module for module in loaded.modules() if isinstance(module, DirectLinear)]
    assert len(direct) == (2 if name == "mamba" else 0)
    rows = serve_shortly(packed, "float32").seen.rows
    found = sorted(distances(rows, reference(plain, torch.float32)))
    assert 0.0 < found[len(found) // 2] < 0.1
