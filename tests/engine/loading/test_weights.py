"""Weights from files: the same as transformers loads, counted, and refused when they are not whole.

What sends them to a GPU runs here with plain buffers and events that only note their use.
"""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from daemon.engine.cuda.weights import Staging, TensorPlaces, WeightSender
from daemon.engine.layers.fuse import merge
from daemon.engine.loading import weights
from daemon.engine.loading.loader import check_weights, load_model
from daemon.engine.loading.weights import open_weights
from daemon.engine.quantised import stored
from daemon.engine.quantised.stored import LoadMeter, Stored, stored_tensors
from daemon.engine.verify.model.reading import check_reading
from daemon.models.shape import ModelError
from tests.engine.loading.checkpoints.read import HERE
from tests.engine.tiny import CONFIGS, save

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


def opened(path: Path) -> tuple[int, dict[str, Stored]]:
    file = os.open(path, os.O_RDONLY)
    return file, stored_tensors(path, file, str)


@pytest.mark.parametrize("name", ["llama", "opt", "gpt_neox"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_as_transformers_loads_it(name: str, dtype: str, tmp_path: Path) -> None:
    folder = save(name, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).state_dict()
    ours = load_model(folder, dtype, CPU).state_dict()
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert ours[key].dtype == tensor.dtype and torch.equal(ours[key], tensor), key


@pytest.mark.parametrize(
    ("name", "sides", "said"),
    [
        ("model.layers.0.self_attn.q_proj.bias", (64,), "has not: model.layers.0.self_attn.q"),
        ("model.layers.1.self_attn.q_norm.weight", (16,), "has not: model.layers.1.self_attn.q"),
        ("model.layers.0.mlp.up_proj.lora_A.weight", (4, 64), "has not: model.layers.0.mlp.up"),
        ("layers.0.mlp.up_proj.bias", (96,), "has not: "),
        ("lm_head.bias", (193,), "has not: lm_head.bias"),
        ("model.embed_norm.weight", (64,), "has not: model.embed_norm.weight"),
        ("model.layers.0.another_norm.weight", (64,), "has not: model.layers.0.another_norm"),
        ("a.name.of.tomorrow", (3,), "has not: a.name.of.tomorrow"),
        ("model.norm.weight", (63,), r"model.norm.weight is \[63\], .* asks for \[64\]"),
    ],
)
def test_weights_that_would_go_unread_are_refused(
    name: str, sides: tuple[int, ...], said: str, llama: Path, tmp_path: Path
) -> None:
    folder = with_tensor(llama, tmp_path / "m", name, sides)
    with pytest.raises(ModelError, match=said) as raised:
        load_model(folder, "float32", CPU)
    assert "\n" not in str(raised.value)
    with pytest.raises(ModelError) as by_headers:
        check_weights(folder)
    assert str(by_headers.value) == str(raised.value)


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("model.layers.2.eh_proj.weight", (64, 128)),  # of a layer that foretells more tokens
        ("v_head.summary.weight", (1, 64)),
        ("mtp.layers.0.norm.weight", (64,)),
        ("model.vision_tower.layers.0.norm.weight", (64,)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (8,)),
        ("model.layers.0.self_attn.bias", (1, 1, 9, 9)),
        ("model.layers.0.self_attn.masked_bias", ()),
    ],
)
def test_what_changes_no_logits_may_go_unread(
    name: str, sides: tuple[int, ...], llama: Path, tmp_path: Path
) -> None:
    folder = with_tensor(llama, tmp_path / "m", name, sides)
    load_model(folder, "float32", CPU)
    check_weights(folder)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"tie_word_embeddings": False}, r"lacks 1 of its weights: lm_head\.weight"),
        (
            {"attention_bias": True},
            r"lacks 8 of its weights: model\.layers\.0\.self_attn\.k_proj\.b",
        ),
        (
            {"head_dim": 32},
            r"k_proj\.weight is \[32, 64\], and its configuration asks for \[64, 64\]",
        ),
        ({"intermediate_size": 48}, r"down_proj\.weight is \[64, 96\]"),
        ({"num_hidden_layers": 1}, None),  # what is behind the last layer foretells more tokens
    ],
)
def test_headers_alone_show_weights_of_another_configuration(
    said: dict[str, object], words: str | None, llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(llama, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    tensors = load_file(llama / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    if "tie_word_embeddings" not in said:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    if words is None:
        check_weights(tmp_path / "m")
        return
    with pytest.raises(ModelError, match=words):
        check_weights(tmp_path / "m")
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path / "m", "float32", CPU)


def test_quantised_tensors_without_a_configuration_of_them_are_refused(
    llama: Path, tmp_path: Path
) -> None:
    name = "model.layers.0.mlp.up_proj.qweight"
    folder = with_tensor(llama, tmp_path / "m", name, (8, 96))
    with pytest.raises(ModelError, match=f"has not: {name}"):
        check_weights(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool])
def test_whole_numbers_that_nothing_explains_are_refused(
    dtype: torch.dtype, llama: Path, tmp_path: Path
) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    shutil.copytree(llama, tmp_path / "m")
    tensors = load_file(llama / "model.safetensors")
    tensors[name] = torch.ones_like(tensors[name], dtype=dtype)
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    said = rf"{name} is stored as \w+, and no quantization_config says what it means"
    with pytest.raises(ModelError, match=said):
        check_weights(tmp_path / "m")


def test_no_number_is_read(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(*_: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(weights.MappedSlice, "__getitem__", reads)
    check_weights(llama)
    with pytest.raises(AssertionError):
        load_model(llama, "float32", CPU)


def test_headers_show_a_quantised_layer_of_another_size(tmp_path: Path) -> None:
    name = min(path.name for path in HERE.glob("model-gptq*"))
    folder = shutil.copytree(HERE / name, tmp_path / name)
    (folder / "tokenizer.json").write_text("{}")
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"intermediate_size": said["intermediate_size"] // 2}))
    with pytest.raises(ModelError, match=r"of another size: .* and its configuration asks for"):
        check_weights(folder)


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("model-*")))
def test_headers_of_quantised_checkpoints_fit(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / name, tmp_path / name)
    (folder / "tokenizer.json").write_text("{}")
    check_weights(folder)


def with_tensor(good: Path, folder: Path, name: str, sides: tuple[int, ...]) -> Path:
    """A copy of a folder with one more tensor, or another."""
    shutil.copytree(good, folder)
    tensors = load_file(good / "model.safetensors")
    save_file({**tensors, name: torch.ones(sides)}, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_shards_are_read_together(llama: Path, tmp_path: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    halves = [dict(list(tensors.items())[side::2]) for side in range(2)]
    names = ["model-1.safetensors", "model-2.safetensors"]
    for name, half in zip(names, halves, strict=True):
        save_file(half, tmp_path / name, {"format": "pt"})
    weight_map = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with open_weights(tmp_path, CPU, lambda _share: None) as (slices, _packed):
        assert slices.keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert torch.equal(slices[key][...], tensor)


def test_what_is_loaded_is_told(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "CHUNK_BYTES", 64)
    monkeypatch.setattr(stored, "_TELL_EVERY_S", 0.0)
    told: list[float] = []
    load_model(llama, "float32", CPU, told.append)
    assert len(told) > 100 and told == sorted(told) and told[-1] == 1.0


def test_telling_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    told: list[float] = []
    meter = LoadMeter(1000, told.append)
    for _ in range(1000):
        now_s += 0.001
        meter.add(1)
    assert 9 <= len(told) <= 11
    LoadMeter(0, told.append).add(0)
    assert told[-1] == 0.0, "no weights, no share"


class NotedEvent:
    """Stands for a CUDA event: waiting for one that was recorded is noted."""

    def __init__(self, story: list[str]) -> None:
        self._story = story
        self._name = f"{len(story)}"
        story.append(f"made {self._name}")

    def record(self) -> None:
        self._story.append(f"record {self._name}")

    def synchronize(self) -> None:
        self._story.append(f"wait {self._name}")


def test_staging_fills_one_buffer_while_the_other_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "CHUNK_BYTES", 100)
    monkeypatch.setattr("daemon.engine.cuda.weights.CHUNK_BYTES", 100)
    tensors = {"long": torch.rand(77), "odd": torch.arange(9, dtype=torch.uint8)}
    tensors |= {"one": torch.tensor(3.5), "none": torch.zeros(0, 4)}
    save_file(tensors, tmp_path / "some.safetensors")
    file, found = opened(tmp_path / "some.safetensors")
    story: list[str] = []
    told: list[float] = []
    staging = Staging(lambda size: torch.empty(size, dtype=torch.uint8), lambda: NotedEvent(story))
    meter = LoadMeter(sum(one.size_bytes for one in found.values()), told.append)
    for name, tensor in tensors.items():
        place = TensorPlaces(found, CPU).take(name)
        assert (place.shape, place.dtype) == (tensor.shape, tensor.dtype)
        staging.send(found[name], place.view(-1).view(torch.uint8), meter)
        assert torch.equal(place, tensor)
    os.close(file)
    chunks = 4 + 1 + 1  # 308 bytes, 9, 4, 0
    used = [f"{word} {turn % 2}" for turn in range(chunks) for word in ("wait", "record")]
    assert story == ["made 0", "made 1", *used], "each is waited for before it is filled again"


def test_transformers_takes_what_is_sent(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda: NotedEvent(story))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: story.append("all arrived"))
    monkeypatch.setattr(
        "daemon.engine.cuda.weights.pinned", lambda size: torch.empty(size, dtype=torch.uint8)
    )
    path = llama / "model.safetensors"
    file, found = opened(path)
    with WeightSender(found, CPU, LoadMeter(1, lambda _share: None)) as sender:
        model = LlamaForCausalLM.from_pretrained(
            None,
            config=CONFIGS["llama"],
            state_dict={name: sender.slice(name) for name in found},
            dtype=torch.float32,
            device_map={"": CPU},
        )
    os.close(file)
    assert story[-1] == "all arrived"
    for name, tensor in load_file(path).items():
        assert torch.equal(model.state_dict()[name], tensor), name
    mlp = model.model.layers[1].mlp
    place = mlp.gate_proj.weight.data_ptr()
    assert merge([mlp.gate_proj, mlp.up_proj]).weight.data_ptr() == place


def test_what_is_merged_lies_back_to_back(llama: Path) -> None:
    file, found = opened(llama / "model.safetensors")
    os.close(file)
    places = TensorPlaces(found, CPU)
    names = sorted(found)
    taken = {name: places.take(name) for name in reversed(names)}
    assert all(taken[name].shape == found[name].shape for name in names)
    prefix = "model.layers.0.self_attn"
    layers = []
    for index, kind in enumerate("qkv"):
        weight = taken[f"{prefix}.{kind}_proj.weight"].fill_(index)
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layers.append(layer)
    merged = merge(layers).weight
    assert merged.data_ptr() == taken[f"{prefix}.q_proj.weight"].data_ptr(), "nothing was copied"
    rows = [len(layer.weight) for layer in layers]
    assert torch.equal(merged[:, 0], torch.repeat_interleave(torch.arange(3.0), torch.tensor(rows)))
    apart = taken["model.layers.0.self_attn.o_proj.weight"].untyped_storage().data_ptr()
    assert apart != merged.untyped_storage().data_ptr()


def test_merging_what_lies_apart_copies() -> None:
    layers = [nn.Linear(4, rows, bias=False) for rows in (3, 2)]
    expected = torch.cat([layer.weight for layer in layers])
    assert torch.equal(merge(layers).weight, expected)
    whole = torch.rand(6, 4)
    layers[0].weight, layers[1].weight = nn.Parameter(whole[:3]), nn.Parameter(whole[4:])
    assert torch.equal(merge(layers).weight, torch.cat([whole[:3], whole[4:]])), "with a gap"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"dtype": "F12"}, "no known kind"),
        ({"data_offsets": [0, 8]}, "is not whole"),
        ({"data_offsets": [96, 192]}, "is not whole"),
        ({"data_offsets": [-96, 0]}, "is not whole"),
        ({"data_offsets": None}, "no known kind"),
    ],
)
def test_files_that_are_not_whole_are_refused(
    change: dict[str, object], match: str, tmp_path: Path
) -> None:
    header = {"w": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96], **change}}
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(np.uint64(len(text)).tobytes() + text + bytes(100))
    file = os.open(path, os.O_RDONLY)
    with pytest.raises(ModelError, match=match):
        stored_tensors(path, file, str)
    os.close(file)


def test_a_file_that_is_cut_while_it_is_read(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((llama / "model.safetensors").read_bytes())
    file, found = opened(path)
    os.truncate(path, 4096)
    with pytest.raises(ModelError, match="became shorter"):
        stored.read_exactly(file, 4090, memoryview(bytearray(10)))
    os.close(file)
    assert found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(dtype: str, tmp_path: Path) -> None:
    folder = save("llama", tmp_path)
    expected = load_model(folder, dtype, CPU).state_dict()
    for key, tensor in load_model(folder, dtype, torch.device("cuda:0")).state_dict().items():
        assert tensor.is_cuda and torch.equal(tensor.cpu(), expected[key]), key


@pytest.mark.parametrize(
    ("name", "dtype", "narrow"),
    [
        ("llama", "float32", ""),
        ("gpt_neox", "bfloat16", ""),
        ("llama", "float32", "bfloat16"),
    ],
)
def test_a_loaded_model_is_compared_with_its_files(
    name: str, dtype: str, narrow: str, tmp_path: Path
) -> None:
    folder = save(name, tmp_path)
    model = load_model(folder, dtype, CPU, weight_dtype=narrow)
    stored = load_file(folder / "model.safetensors")
    renamed = {"embed_out.weight"} & stored.keys()  # by transformers
    assert check_reading(model, folder) == len(stored) - len(renamed)


def test_a_weight_that_is_no_number_is_named(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "m")
    tensors, name = load_file(llama / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    model = load_model(tmp_path / "m", "float32", CPU)
    with pytest.raises(ModelError, match=rf"{name} has values that are no numbers \(NaN\)"):
        check_reading(model, tmp_path / "m")


@pytest.mark.parametrize("narrow", ["", "bfloat16"])
def test_a_weight_that_was_loaded_wrongly_is_found(
    narrow: str, llama: Path, tmp_path: Path
) -> None:
    model = load_model(llama, "float32", CPU, weight_dtype=narrow)
    shutil.copytree(llama, tmp_path / "other")
    tensors = load_file(llama / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    for wrong in (tensors[name].flip(0), tensors[name] * 1.5, tensors[name].roll(1, 1)):
        path = tmp_path / "other" / "model.safetensors"
        save_file({**tensors, name: wrong.contiguous()}, path, {"format": "pt"})
        with pytest.raises(ModelError, match=f"{name} was not loaded as the file has it"):
            check_reading(model, tmp_path / "other")
