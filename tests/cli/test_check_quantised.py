"""`llmd check` on quantised checkpoints: what it says of them, and which it refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from daemon.cli.main import main
from daemon.config import cuda
from daemon.control import client
from daemon.models.consistent import checked_shape
from daemon.models.shape import read_json
from tests.config.driver import LARGE, build_driver, pretend
from tests.engine.loading.checkpoints.read import HERE
from tests.supervisor.model_folder import write_llama

pytestmark = pytest.mark.usefixtures("quick_python")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cuda.VISIBLE, "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(client, "SERVICE_SOCKET", tmp_path / "none")
    found = tmp_path / "model"
    shutil.copytree(HERE / "model-w8a8", found)
    (found / "tokenizer.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
    )
    return found


def _say(folder: Path, **changes: object) -> None:
    config = read_json(folder / "config.json")
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


def test_method_and_parameters_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _say(folder, kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert main(["check", "--port", "0", "--model", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "llama: 14,432 parameters stored as bfloat16" in said
    assert "quantized by compressed-tensors, states stay as they are computed" in said
    assert "its scales for keys and values are not used" in said
    assert "92% of the weights in blocks as stored" in said


def test_on_a_gpu_weights_stay_in_blocks_too(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, build_driver(tmp_path), LARGE)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    flags = ["--model", str(folder), "--instance", "cuda:0", "--json"]
    assert main(["check", "--port", "0", *flags]) == 0
    room = json.loads(capsys.readouterr().out)["instances"][0]["pool"]["room"]
    shape = checked_shape(folder, tmp_path)
    assert room["weight_bytes"] == shape.packed_bytes + shape.plain_bytes("bfloat16")
    assert main(["check", "--port", "0", *flags[:-1]]) == 0
    said = capsys.readouterr().out
    assert "computes in  bfloat16, 92% of the weights in blocks as stored" in said
    assert "unpacked          128.0 MiB of their numbers at a time" in said


def test_the_bytes_of_blocks_are_told_before_they_are_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    write_llama(folder)
    cache = folder.parent / "cache"
    words = ["check", "--port", "0", "--model", str(folder), "--quantize", "int4", "--json"]
    assert main([*words, "--set", f"daemon.cache='{cache}'"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Rows of 64 in blocks of int4/64 (40 bytes); of 96 three blocks of int4/32 (24 each); the
    # embedding, the head and the 32 rows of values int8/64 (72); three norms of float32, which a
    # CPU holds twice.
    layers = (64 + 32 + 64 + 96 + 96) * 40 + 64 * 3 * 24
    in_blocks = layers + (2 * 193 + 32) * 72
    assert found["model"]["packed_bytes"] == in_blocks
    assert found["model"]["packed_params"] == found["model"]["num_params"] - 3 * 64
    room = found["instances"][0]["pool"]["room"]
    assert room["weight_bytes"] == in_blocks + 2 * 3 * 64 * 4
    assert not (cache / "models").exists()
    assert main(["check", "--port", "0", "--quantize", "int4"]) == 1
    assert "the embedded model is a GGUF file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quant_method": "hqq"}, "its weights are quantized by hqq, and llmd reads awq"),
        ({"format": "marlin-24"}, "in the format marlin-24, not in pack-quantized"),
        ({"ignore": ["re:.*up_proj"]}, "mlp.up_proj is stored quantized, and"),
    ],
)
def test_what_is_not_read_is_refused_in_a_sentence(
    changes: dict[str, object], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _say(folder, **changes)
    assert main(["check", "--port", "0", "--model", str(folder)]) != 0
    told = capsys.readouterr()
    assert words in told.out + told.err
