"""Nothing false is served: every model is tried on its device, and faults are found."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from daemon.engine.loader import load_model
from daemon.engine.protocol import Load
from daemon.engine.resolve import shape_here
from daemon.engine.start import assemble
from daemon.engine.step import Engine
from tests.engine import tiny
from tests.engine.process import cpu_load

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.1,
}
LONG_YARN = {**YARN, "original_max_position_embeddings": 300}


def config(model_type: str, **fields: Any) -> PreTrainedConfig:
    return tiny.config(model_type, **{**COMMON, **fields})


def save(folder: Path, model_type: str, **fields: Any) -> Path:
    """A folder with a random model of a type."""
    torch.manual_seed(3)
    loader: Any = AutoModelForCausalLM
    loader.from_config(config(model_type, **fields)).float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


class Tries:
    """Assembles engines of folders as a worker does, with verdicts in a folder of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.stages: list[tuple[str, float]] = []

    def load(self, folder: Path, **changes: Any) -> Load:
        fields = {"block_size": 8, "num_blocks": 96, "max_len": 512, "num_threads": 1}
        return cpu_load(str(folder), cache=str(self.place / "cache"), **{**fields, **changes})

    def engine(self, folder: Path, **changes: Any) -> Engine:
        load = self.load(folder, **changes)
        self.stages = []
        torch.set_num_threads(1)
        with torch.inference_mode():
            model = load_model(folder, load.dtype, torch.device("cpu"))
            shape = shape_here(folder)
            return assemble(model, shape, load, lambda *stage: self.stages.append(stage))

    def kept(self) -> list[Path]:
        return sorted((self.place / "cache" / "trials").glob("*.json"))


@pytest.fixture
def tries(tmp_path: Path) -> Tries:
    return Tries(tmp_path)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save(tmp_path / "llama", "llama")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rope", [YARN, LONG_YARN])
def test_scaling_by_position_is_seen_and_left_to_the_modules(
    rope: dict[str, Any],
    dtype: str,
    tries: Tries,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its queries grow from a position on; the modules are those of a Llama that does not."""
    folder = save(tmp_path / "m", "ministral3", rope_parameters=rope)
    with caplog.at_level(logging.WARNING):
        engine = tries.engine(folder, dtype=dtype)
    # Rounding to bfloat16 hides a scale of 7 % over few keys far out.
    assert not engine.model.fused or (dtype == "bfloat16" and rope is LONG_YARN)
    assert engine.model.fused or "fused decoder would be wrong" in caplog.text
