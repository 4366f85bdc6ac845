"""Layers that predict several tokens at once are found, said once and left out."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import resolve_here, shape_here
from daemon.models.consistent import checked_shape
from daemon.models.shape import ModelError
from tests.engine.tiny import reference, save

CPU = torch.device("cpu")


def with_tensors(folder: Path, more: dict[str, torch.Tensor], **fields: Any) -> Path:
    """A tiny DeepSeek V3 of three layers whose files hold more than it is made of."""
    save("deepseek_v3", folder)
    path = folder / "model.safetensors"
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


def layer(number: int, *modules: str) -> dict[str, torch.Tensor]:
    """Tensors of a layer that predicts: one as any layer has, and `modules`."""
    names = ("input_layernorm", *modules)
    return {f"model.layers.{number}.{name}.weight": torch.ones(64) for name in names}


@pytest.mark.parametrize(
    "more",
    [layer(3, "eh_proj", "enorm"), {"mtp.layers.0.eh_proj.weight": torch.ones(64, 128)}],
    ids=["behind", "named"],
)
def test_they_are_left_out_and_said_once(
    more: dict[str, torch.Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = save("deepseek_v3", tmp_path / "plain")
    folder = with_tensors(tmp_path / "m", more, num_nextn_predict_layers=1)
    shape = checked_shape(folder, tmp_path / "cache", resolve_here)
    assert shape.num_params == shape_here(plain).num_params
    with caplog.at_level(logging.INFO), torch.inference_mode():
        model: Any = load_model(folder, "float32", CPU)
        tokens = torch.tensor([[2, 3, 5, 7]])
        model.set_attn_implementation("eager")
        torch.testing.assert_close(model(tokens).logits, reference("deepseek_v3")(tokens).logits)
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(said) == 1 and f"{len(more)} weights predict further tokens" in said[0]


def test_a_layer_of_the_models_own_is_not_taken_for_one(tmp_path: Path) -> None:
    """A configuration with a layer too few, beside all weights: the last one predicts nothing."""
    folder = with_tensors(tmp_path, {}, num_hidden_layers=2, num_nextn_predict_layers=1)
    with pytest.raises(ModelError, match="layer 2 of the weights is behind"):
        checked_shape(folder, tmp_path / "cache", resolve_here)


def test_layers_behind_the_last_that_no_field_tells_of_are_refused(tmp_path: Path) -> None:
    folder = with_tensors(tmp_path, layer(3, "eh_proj"), num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match="says 3 layers, the weights have 4"):
        checked_shape(folder, tmp_path / "cache", resolve_here)
