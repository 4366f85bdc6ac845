"""The embedded model: its tokenizer, its chat template, and its greedy answers."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from daemon.config.paths import default_cache
from daemon.engine.loading.resolve import shape_here
from daemon.engine.worker.start import start
from daemon.models.embedded import model_folder
from daemon.models.generation import DefaultSampling, default_sampling
from tests.engine.driver import Driver
from tests.engine.loading.gguf_files import unpacked
from tests.engine.process import cpu_load
from tests.engine.tiny import greedy

PROMPTS = (
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "The first ten prime numbers are 2, 3,  5",
    "def fibonacci(n):\n    ",
)
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def folder() -> Path:
    return model_folder("", default_cache())


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_its_files_say_what_serving_needs(folder: Path) -> None:
    shape = shape_here(folder)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (30, 9, 3)
    assert shape.num_params == 134_515_008
    assert shape.context_len == 8192
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in config["chat_template"]
    assert config["eos_token"] == "<|im_end|>"


def test_its_default_sampling_is_written_beside_it(folder: Path) -> None:
    defaults = default_sampling("auto", folder)
    assert defaults == DefaultSampling(temperature=0.2, top_p=0.9, repetition_penalty=1.1)


def test_its_tokenizer_splits_as_the_model_learned(folder: Path, tokenizer: Tokenizer) -> None:
    text = "<|im_start|>user\nIt  costs  $1234!\nnaïve 日本<|im_end|>"
    tokens = tokenizer.encode(text)
    assert tokens.ids[0] == 1
    assert shape_here(folder).eos_token_ids[0] == tokens.ids[-1] == 2
    assert tokenizer.decode(tokens.ids, skip_special_tokens=False) == text
    # Digits are split off first, so that spaces before a number stay together.
    assert tokenizer.encode("x  12").tokens == ["x", "ĠĠ", "1", "2"]


@pytest.mark.soak  # tests/e2e/test_exactness.py compares more of them, through a whole daemon
def test_its_greedy_answers_are_those_of_transformers(folder: Path, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    with torch.inference_mode():
        message = cpu_load(str(folder), num_threads=0)
        engine, *_ = start(message, lambda stage, done: None)
        assert engine.model.fused
        plans = Driver(16, list(range(64)))
        sequences = [plans.add(slot, tokens) for slot, tokens in enumerate(prompts)]
        for _ in range(NUM_TOKENS):
            work = [(s, len(s.tokens) - s.num_computed) for s in sequences]
            plans.take(work, engine.run(plans.plan(work)))
    model = unpacked(folder / "model.gguf")
    for sequence, tokens in zip(sequences, prompts, strict=True):
        assert sequence.outputs == greedy(model, tokens, NUM_TOKENS)
