"""A folder of plain weights becomes one with weights in blocks: once, whole, and served so."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.config.load import load
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.requantise import plan, requantise
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.engine.quantised.linear import quantised_layers
from daemon.engine.quantised.nearest import nearest_blocks
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.worker.start import start
from daemon.models import quantised_folder as kept
from daemon.models.formats import FORMATS
from daemon.models.gguf_index import OWN_FILE, OWN_INDEX, read_index
from daemon.models.kept_folder import Tell
from daemon.models.quantise_plan import planned_index
from daemon.models.quantised_layers import TensorHeader
from daemon.models.shape import ModelError
from daemon.models.weights import count_weights
from daemon.protocol.worker import Load
from daemon.runtime.model import find_model
from tests.engine.loading.gguf_cases import CASES, GPT_OSS
from tests.engine.loading.gguf_written import tiny
from tests.engine.quantised.test_models import check_greedy_text
from tests.supervisor.model_folder import write_llama

pytestmark = pytest.mark.usefixtures("quick_python")

KINDS = ("int8", "int4", "fp8")
CPU = torch.device("cpu")


def here(kind: str, source: Path, target: Path, told: Tell) -> None:
    """In this process, which has imported all already."""
    requantise(source, target, kind, told)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, source: Path, cache: Path) -> tuple[str, Path]:
    return request.param, kept.ensure_quantised(source, request.param, cache, make=here)


def test_layers_have_the_blocks_of_their_numbers(made: tuple[str, Path], source: Path) -> None:
    kind, folder = made
    plain = load_file(source / "model.safetensors")
    index = read_index(folder)
    assert index is not None and {one.name for one in index.tensors} == set(plain)
    data = np.fromfile(folder / OWN_FILE, np.uint8)
    for one in index.tensors:
        if len(one.shape) == 1:
            assert one.format == "F32"
            expected = plain[one.name].view(torch.uint8)
        else:
            wide = one.name in ("model.embed_tokens.weight", "lm_head.weight")
            wide |= one.name.endswith(".v_proj.weight")
            group = 64 if one.shape[1] == 64 else 32
            assert one.format == f"{'int8' if wide else kind}/{group}"
            expected = nearest_blocks(FORMATS[one.format], plain[one.name])
        found = data[one.start : one.start + one.size_bytes]
        np.testing.assert_array_equal(found, expected.numpy().ravel())
        assert one.start % 64 == 0


def test_what_is_planned_is_what_is_loaded(made: tuple[str, Path], source: Path) -> None:
    kind, folder = made
    index = read_index(folder)
    assert index is not None and plan(source, kind) == index
    counted = count_weights(folder)
    assert counted.num_params == count_weights(source).num_params
    model = load_model(folder, "float32", CPU)
    held = {id(one): one for _, layer in quantised_layers(model) for one in layer.weights}
    assert sum(one.size_bytes for one in held.values()) == counted.packed_bytes
    assert sum(one.rows * one.columns for one in held.values()) == counted.packed_params
    matrices = [one for one in index.tensors if len(one.shape) == 2]
    assert counted.packed_bytes == sum(one.size_bytes for one in matrices)


def test_its_greedy_text_is_that_of_its_numbers(made: tuple[str, Path], cache: Path) -> None:
    _, folder = made
    told = Load(str(folder), "cpu", "float32", 8, 32, 4, 128, 32, cache=str(cache), exact=True)
    with torch.inference_mode():
        engine, *_ = start(told, lambda _stage, _done: None)
    check_greedy_text(engine, folder)


def test_the_daemon_serves_it_and_its_pool_leaves_room_for_the_blocks(
    source: Path, tmp_path: Path
) -> None:
    flags = {"model.path": str(source), "daemon.cache": str(tmp_path), "memory.kv_blocks": 64}
    shares: list[float] = []
    config = load(None, {**flags, "model.quantize": "int4", "model.dtype": "float32"}).config
    served = find_model(config, progress=shares.append)
    assert served.folder == kept.quantised_folder(source, "int4", tmp_path)
    assert shares[-1] == 1.0 and served.name == source.name
    room = served.pools[0].room
    plain = 4 * (served.shape.num_params - served.shape.packed_params)
    assert room is not None and room.weight_bytes == served.shape.packed_bytes + 2 * plain


def test_tied_embeddings_become_one_and_odd_rows_stay(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    source = write_llama(tmp_path / "plain")
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    del tensors["lm_head.weight"]
    for part in ("gate", "up"):
        tensors[f"model.layers.0.mlp.{part}_proj.weight"] = torch.randn(72, 64)
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.randn(64, 72)  # no whole groups
    narrow = {name: one.bfloat16().contiguous() for name, one in tensors.items()}
    narrow["model.layers.0.self_attn.steps"] = torch.arange(3)  # no file of blocks holds integers
    save_file(narrow, source / "model.safetensors", {"format": "pt"})
    config |= {"tie_word_embeddings": True, "intermediate_size": 72, "dtype": "bfloat16"}
    (source / "config.json").write_text(json.dumps(config))
    folder = kept.ensure_quantised(source, "int4", tmp_path / "cache", make=here)
    index = read_index(folder)
    assert index is not None and index.computed
    formats = {one.name: one.format for one in index.tensors}
    assert formats["model.layers.0.mlp.down_proj.weight"] == "BF16"
    assert formats["model.layers.0.mlp.up_proj.weight"] == "int4/64"
    others = load_file(folder / "model.safetensors")
    assert others.keys() == {"model.layers.0.self_attn.steps"}
    (folder / "model.safetensors").unlink()
    save_file({"model.rotary.inv_freq": torch.ones(1)}, folder / "model.safetensors")
    layers = dict(quantised_layers(load_model(folder, "float32", CPU)))
    assert layers["lm_head"].weights[0] is layers["model.embed_tokens"].weights[0]
    assert layers["lm_head"].weights[0].format.name == "int8/64"


def test_groups_are_the_longest_that_rows_are_whole_of() -> None:
    headers = {str(columns): TensorHeader("F16", (4, columns)) for columns in (256, 192, 96, 72)}
    index = planned_index(headers, headers.keys(), (), "int4")
    found = [one.format for one in index.tensors]
    assert found == ["int4/128", "int4/64", "int4/32", "F16"]
    assert [one.start for one in index.tensors] == [0, 576, 1088, 1408]
    assert index.size_bytes == 1408 + 576


def test_it_is_made_once_for_a_content(source: Path, tmp_path: Path) -> None:
    calls: list[str] = []

    def make(kind: str, source: Path, target: Path, told: Tell) -> None:
        calls.append(kind)
        here(kind, source, target, told)

    copy = shutil.copytree(source, tmp_path / "copy")
    cache = tmp_path / "cache"
    first = kept.ensure_quantised(source, "fp8", cache, make=make)
    assert kept.ensure_quantised(copy, "fp8", cache, make=make) == first
    assert calls == ["fp8"]
    os.truncate(first / OWN_FILE, 100)  # a machine that lost its power
    assert kept.ensure_quantised(source, "fp8", cache, make=make) == first
    assert calls == ["fp8", "fp8"] and (first / OWN_FILE).stat().st_size > 100
    (copy / "tokenizer.json").write_text('{"model": {"vocab": {"b": 0}}}')
    second = kept.ensure_quantised(copy, "fp8", cache, make=make)
    assert second != first and "b" in (second / "tokenizer.json").read_text()


def test_one_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    source: Path, tmp_path: Path
) -> None:
    cache, big = tmp_path / "cache", shutil.copytree(source, tmp_path / "big")
    tensors = load_file(big / "model.safetensors")
    tensors["model.other"] = torch.zeros(2**24)  # a while's work
    save_file(tensors, big / "model.safetensors", {"format": "pt"})
    target = kept.quantised_folder(big, "int4", cache)
    partial = target.with_name(f".{target.name}.partial")
    words = "import sys; from pathlib import Path; from daemon.models import quantised_folder as q"
    ask = f"{words}; q.ensure_quantised(Path(sys.argv[1]), 'int4', Path(sys.argv[2]))"
    with subprocess.Popen([sys.executable, "-c", ask, str(big), str(cache)]) as child:
        while not (partial / OWN_FILE).exists():
            assert child.poll() is None
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    assert not target.exists() and not (partial / OWN_INDEX).exists()
    assert kept.ensure_quantised(big, "int4", cache) == target
    assert not partial.exists() and read_index(target) == plan(big, "int4")


def test_what_is_quantised_already_is_refused(
    made: tuple[str, Path], source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"quantized already: leave model\.quantize"):
        kept.ensure_quantised(made[1], "int4", tmp_path)
    with pytest.raises(ModelError, match="the embedded model is a GGUF file"):
        kept.plain_folder("", "int4", tmp_path)
    with pytest.raises(ModelError, match=r"x\.gguf is a GGUF file, which model\.quantize = 'fp8'"):
        kept.plain_folder("x.gguf", "fp8", tmp_path)
    packed = shutil.copytree(source, tmp_path / "packed")
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (packed / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantized by awq already"):
        kept.ensure_quantised(packed, "int4", tmp_path)


def test_faults_are_told_in_a_sentence(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, wrong = tmp_path / "cache", shutil.copytree(source, tmp_path / "wrong")
    tensors = load_file(wrong / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 3] = torch.nan
    save_file(tensors, wrong / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"up_proj\.weight holds numbers that are not finite"):
        kept.ensure_quantised(wrong, "int4", cache)
    small = shutil.copytree(source, tmp_path / "small")
    save_file({"model.norm.weight": torch.ones(64)}, small / "model.safetensors")
    with pytest.raises(ModelError, match="a linear layer's of whole groups"):
        kept.ensure_quantised(small, "int4", cache, make=here)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ModelError, match=r"cannot be quantised into .*Not a directory"):
        kept.ensure_quantised(source, "int8", tmp_path / "file")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    with pytest.raises(ModelError, match=r"GiB as int8, and .* has 0\.00 GiB free"):
        requantise(source, cache / "models" / "new", "int8", lambda _share: None)
    assert not list((cache / "models").glob("[!.]*"))


@pytest.mark.parametrize("architecture", ["granitemoe", "gpt-oss", "qwen35moe"])
def test_experts_that_a_folder_has_in_one_tensor_become_blocks(
    architecture: str, source: Path, tmp_path: Path
) -> None:
    """Turned or not, with biases or not: the numbers are the nearest blocks of the folder's."""
    model = tiny(GPT_OSS if architecture == "gpt-oss" else CASES[architecture])
    model.save_pretrained(tmp_path / "plain")
    shutil.copy(source / "tokenizer.json", tmp_path / "plain")
    stacks = {name: it for name, it in model.state_dict().items() if it.ndim == 3}
    experts = {name: it for name, it in stacks.items() if ".experts." in name}
    whole = {name.rpartition(".")[0] for name in experts}
    assert len(whole) == model.config.num_hidden_layers
    requantise(tmp_path / "plain", tmp_path / "made", "int4", lambda _share: None)
    served = load_model(tmp_path / "made", "float32", CPU)
    packed = {name: it for name, it in served.named_modules() if isinstance(it, QuantisedExperts)}
    assert packed.keys() == whole
    with torch.no_grad():
        for owner, module in packed.items():
            for parameter, layers in (("gate_up_proj", module.gate_up), ("down_proj", module.down)):
                stack = experts[f"{owner}.{parameter}"]
                turned = model.get_submodule(owner).is_transposed
                for expert, layer in enumerate(layers):
                    plain = stack[expert].T if turned else stack[expert]
                    assert len(layer.weights) == 1 or architecture == "qwen35moe"
                    form = layer.weights[0].format
                    expected = nearest_blocks(form, plain.contiguous())
                    columns = plain.shape[1]
                    found = layer.weight
                    assert torch.equal(found, QuantisedWeight(form, expected, columns).numbers())
