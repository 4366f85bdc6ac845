"""Quantised checkpoints that their formats' own tools wrote: numbers bit for bit, and counts."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from daemon.engine.loading.resolve import resolve_here, shape_here
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import ModelError, read_json
from daemon.models.supported import check_folder
from daemon.models.weights import count_weights
from tests.engine.loading.checkpoints.read import FOLDERS, HERE, taken

WHOLE = [name for name in FOLDERS if name.startswith("model-")]
ORDERED = {"model-gptq-order", "gptq-8-order", "gptq-of-2023", "w4a16-order"}


@pytest.mark.parametrize("name", FOLDERS)
def test_numbers_are_those_of_the_tool_that_wrote_them(name: str) -> None:
    """Rounded to the type that the tool computes in; see `daemon.engine.quantised.repack`."""
    told = read_json(HERE / name / "numbers.json")
    with taken(HERE / name) as (weights, _):
        assert set(weights) == set(told)
        for weight, (dtype, digest) in told.items():
            numbers = weights[weight]().numbers().to(getattr(torch, dtype))
            data = numbers.contiguous().view(torch.uint8).numpy().tobytes()
            assert hashlib.sha256(data).hexdigest() == digest, weight


def test_there_are_checkpoints_in_another_order_and_with_zero_points() -> None:
    """So that the test above says something of them."""
    orders, zeros = set(), set()
    for name in FOLDERS:
        with taken(HERE / name) as (weights, _):
            made = [make() for make in weights.values()]
        if any(one.order is not None for one in made):
            orders.add(name)
        heads = [
            one.data.view(len(one.data), -1, one.format.block_bytes)[:, :, 4:8] for one in made
        ]
        points = torch.cat([head.reshape(-1, 4).contiguous().view(torch.float32) for head in heads])
        if len(points.unique()) > 2:
            zeros.add(name)
    assert orders == ORDERED
    assert {"model-awq", "model-gptq-order", "gptq-v2-rows", "model-w4a16-zeros"} <= zeros
    assert {"w8a16-zeros", "w4a16-order"} <= zeros


@pytest.mark.parametrize("name", FOLDERS)
def test_bytes_and_parameters_are_known_from_headers(name: str) -> None:
    folder = HERE / name
    count = count_weights(folder, read_quantisation(folder, read_json(folder / "config.json")))
    with taken(folder) as (weights, meter):
        made = [make() for make in weights.values()]
    assert count.packed_params == sum(one.rows * one.columns for one in made)
    # An order that changes nothing is not kept, and headers do not tell it.
    orders = sum(0 if one.order is not None else 4 * one.columns for one in made)
    held = sum(one.size_bytes for one in made)
    assert held == count.packed_bytes - (orders if name in ORDERED else 0)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        plain = {one: file.get_tensor(one) for one in file.keys() if ".self_" not in one}  # noqa: SIM118
        plain = {one: tensor for one, tensor in plain.items() if ".mlp." not in one}
    assert count.num_params == count.packed_params + sum(one.numel() for one in plain.values())
    size_bytes = (folder / "model.safetensors").stat().st_size
    assert (
        size_bytes - 8000 < meter.count_bytes + sum(o.nbytes for o in plain.values()) < size_bytes
    )


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_model_is_understood_before_it_is_loaded(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(HERE / name, folder)
    (folder / "tokenizer.json").write_text("{}")
    check_folder(folder, resolve_here(folder))
    shape = shape_here(folder)
    assert (shape.num_params, shape.packed_params) == (14432, 13312)
    assert shape.plain_bytes("float32") == 4 * (14432 - 13312)


@pytest.mark.parametrize(
    ("name", "file"), [("model-awq", "quant_config.json"), ("gptq-8-order", "quantize_config.json")]
)
def test_older_folders_say_it_in_a_file_of_its_own(name: str, file: str, tmp_path: Path) -> None:
    config = read_json(HERE / name / "config.json")
    said = config.pop("quantization_config")
    found = read_quantisation(tmp_path, {"quantization_config": said})
    del said["quant_method"]
    (tmp_path / file).write_text(json.dumps(said))
    assert found is not None
    assert read_quantisation(tmp_path, config) == found
    (tmp_path / file).write_text(json.dumps({**said, "bits": 3}))
    with pytest.raises(ModelError, match=f"{tmp_path.name}.* to 3 bits"):
        read_quantisation(tmp_path, config)
    (tmp_path / file).unlink()
    assert read_quantisation(tmp_path, config) is None
