"""The models that other servers are compared with hold the same numbers in every format."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.gguf_file import write_gguf
from benchmarks.peers.make_formats import write_bfloat16
from benchmarks.peers.model import configuration, train_tokenizer, write_model

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
