"""Tokens of a folder: which end an answer, and which the model has no row for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from daemon.models.consistent import check_consistent
from daemon.models.shape import ModelError, ModelShape
from daemon.models.vocabulary import end_token_ids, read_tokenizer

ADDED = [{"id": 4, "content": "<|im_end|>"}, {"id": 5, "content": "</s>"}]


def folder_of(folder: Path, **files: Any) -> Path:
    """A folder with such contents of its JSON files; its tokenizer has six tokens."""
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1, "c": 2, "end": 3}}, "added_tokens": ADDED}
    for name, value in ({"tokenizer": tokenizer} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, (0,)),
        ({"generation_config": {"eos_token_id": 1}}, (1, 0)),
        ({"generation_config": {"eos_token_id": [1, 0, 5]}}, (1, 0, 5)),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, (0, 4)),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, (0, 5)),
        ({"tokenizer_config": {"eos_token": "end"}}, (0, 3)),
        ({"tokenizer_config": {}, "special_tokens_map": {"eos_token": "</s>"}}, (0, 5)),
        ({"tokenizer_config": {"eos_token": "unheard of"}}, (0,)),
        (
            {"generation_config": {"eos_token_id": 1}, "tokenizer_config": {"eos_token": "</s>"}},
            (1, 0, 5),
        ),
        ({"generation_config": {"eos_token_id": [1, 99]}}, (1, 0)),  # no answer has a 99
    ],
)
def test_every_token_that_a_file_names_ends_an_answer(
    files: dict[str, Any], ends: tuple[int, ...], tmp_path: Path
) -> None:
    assert end_token_ids(folder_of(tmp_path, **files), (0,), 6) == ends


@pytest.mark.parametrize("said", [True, False, 1.5, "</s>", [1, True], [[1]], {"id": 1}])
def test_an_end_that_is_no_token_is_refused(said: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, generation_config={"eos_token_id": said})
    with pytest.raises(ModelError, match="eos_token_id must be a token or a list of them, got "):
        end_token_ids(folder, (0,), 6)


def test_a_unigram_vocabulary_has_ids_by_place(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": [["a", 0.0], ["</s>", -1.0]]}}
    config = {"eos_token": "</s>"}
    folder = folder_of(tmp_path, tokenizer=tokenizer, tokenizer_config=config)
    assert end_token_ids(folder, (), 6) == (1,)
    assert read_tokenizer(folder).highest == 1


SHAPE = ModelShape(
    model_type="llama",
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    hidden_size=4,
    vocab_size=5,
    context_len=8,
    num_params=20,
    dtype="float32",
)


def test_a_token_beyond_the_embedding_is_refused_where_every_prompt_has_it(tmp_path: Path) -> None:
    save_file({"embed": np.zeros((5, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    check_consistent(folder_of(tmp_path), SHAPE)  # a client who asks for it gets a 400
    around = {
        "type": "Sequence",
        "processors": [{"special_tokens": {"</s>": {"id": "</s>", "ids": [5], "tokens": []}}}],
    }
    vocabulary = {"a": 0, "b": 1, "c": 2, "end": 3}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": ADDED, "post_processor": around}
    with pytest.raises(
        ModelError, match=r"puts the token '</s>' \(5\), beyond the vocabulary of 5"
    ):
        check_consistent(folder_of(tmp_path, tokenizer=tokenizer), SHAPE)
