"""Engines of tiny random models, tried as a worker tries them; verdicts in folders of their own."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import assemble
from daemon.models.shape import ModelShape
from daemon.protocol.worker import Load
from tests.engine.process import cpu_load
from tests.shapes import SIZES

COMMON: dict[str, Any] = {
    **SIZES,
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.1,
}
OLDER = {"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 512}
SERVED = "trial: the fused decoder; "


def save(folder: Path, model_type: str, **fields: Any) -> Path:
    """A folder with a random model of a type."""
    torch.manual_seed(3)
    loader: Any = AutoModelForCausalLM
    loader.from_config(CONFIG_MAPPING[model_type](**fields)).float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    return folder


class Tries:
    """Assembles engines of folders as a worker does, with verdicts in a folder of its own."""

    def __init__(self, place: Path) -> None:
        self._cache = place / "cache"
        self.stages: list[tuple[str, float]] = []

    def load(self, folder: Path, **changes: Any) -> Load:
        fields = {"block_size": 8, "num_blocks": 96, "max_len": 512, "num_threads": 1}
        return cpu_load(str(folder), cache=str(self._cache), **{**fields, **changes})

    def engine(
        self,
        folder: Path,
        shape: ModelShape | None = None,
        backend: Backend | None = None,
        **changes: Any,
    ) -> Engine:
        load = self.load(folder, **changes)
        self.stages = []
        with torch.inference_mode():
            model = load_model(folder, load.dtype, torch.device("cpu"))
            shape = shape or shape_here(folder)
            return assemble(model, shape, load, lambda *it: self.stages.append(it), backend)

    @property
    def tried(self) -> bool:
        """Whether the last engine was tried, or believed."""
        return "trial" in [stage for stage, _share in self.stages]

    @property
    def kept(self) -> list[Path]:
        return sorted((self._cache / "trials").glob("*.json"))
