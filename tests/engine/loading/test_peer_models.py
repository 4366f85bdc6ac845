"""The models that other servers are compared with hold the same numbers in every format."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.gguf_file import write_gguf
from benchmarks.peers.make_formats import write_bfloat16
from benchmarks.peers.model import configuration, train_tokenizer, write_model
from benchmarks.peers.shape_files import begin_file, kind_of
from benchmarks.peers.shapes import SHAPES, Shape
from daemon.engine.loading.convert import convert
from daemon.engine.loading.resolve import resolve_here
from daemon.models.embedded import ensure_converted
from daemon.models.supported import check_folder

VOCABULARY = 400
TEXT = "def main():\n    print('1234 owls')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = configuration(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
    )
    made = tmp_path_factory.mktemp("peers") / "model"
    write_model(config, train_tokenizer(VOCABULARY, [Path(__file__)]), made)
    return made


def test_a_gguf_file_has_the_folders_numbers_and_tokens(folder: Path, tmp_path: Path) -> None:
    write_gguf(folder, tmp_path / "model.gguf")
    wanted = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf").state_dict()
    assert read.keys() == wanted.keys()
    assert all(torch.equal(read[name], weight) for name, weight in wanted.items())
    ours = AutoTokenizer.from_pretrained(folder)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert theirs(TEXT)["input_ids"] == ours(TEXT)["input_ids"]


def test_a_bfloat16_folder_is_the_other_one_rounded(folder: Path, tmp_path: Path) -> None:
    write_bfloat16(folder, tmp_path / "rounded")
    wanted = AutoModelForCausalLM.from_pretrained(folder)
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "rounded")
    assert rounded.dtype == torch.bfloat16
    for name, weight in rounded.state_dict().items():
        assert torch.equal(weight, wanted.state_dict()[name].bfloat16())


def test_a_model_is_the_same_every_time(folder: Path, tmp_path: Path) -> None:
    wanted = AutoModelForCausalLM.from_pretrained(folder)
    write_model(wanted.config, train_tokenizer(VOCABULARY, [Path(__file__)]), tmp_path)
    for path in folder.glob("*.safetensors"):
        again = load_file(tmp_path / path.name)
        assert all(torch.equal(weight, again[name]) for name, weight in load_file(path).items())


def _cut(name: str) -> Shape:
    """A shape with the few tokens of this file's tokenizer."""
    shape = SHAPES[name]
    sides = {
        one: (VOCABULARY, *side[1:]) if one in ("token_embd.weight", "output.weight") else side
        for one, side in shape.tensors.items()
    }
    return dataclasses.replace(
        shape, fields={**shape.fields, "vocab_size": VOCABULARY}, tensors=sides
    )


@pytest.mark.parametrize("name", ["gemma3", "gpt-oss", "qwen3moe"])
def test_a_file_of_a_shape_says_all_that_llmd_asks(name: str, folder: Path, tmp_path: Path) -> None:
    shape = _cut(name)
    path = tmp_path / "model.gguf"
    writer = begin_file(path, shape, shape.formats[-1], folder)
    size_bytes = sum(-(-one.nbytes // 32) * 32 for one in writer.tensors[0].values())
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    os.truncate(path, start + size_bytes)  # the numbers, which nobody reads here
    made = ensure_converted(path, tmp_path / "cache", convert, lambda _share: None)
    check_folder(made, resolve_here(made))
    config = AutoConfig.from_pretrained(made)
    assert config.num_hidden_layers == shape.fields["block_count"]
    chosen = shape.fields.get("expert_used_count")
    assert getattr(config, "num_experts_per_tok", None) == chosen


def test_half_of_the_layers_have_wider_values_in_q4_k_m() -> None:
    shape = SHAPES["gemma3"]
    kinds = [kind_of(f"blk.{layer}.attn_v.weight", shape, "q4_k_m").name for layer in range(12)]
    assert "".join(kind[1] for kind in kinds) == "644644644666"
