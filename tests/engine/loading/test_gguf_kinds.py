"""Values of a GGUF file's fields: each is of the kind that llmd reads, or refused by its name."""

import re
from pathlib import Path
from typing import Any

import pytest

from daemon.engine.loading.gguf_fields import check_fields
from daemon.models.gguf_header import GgufHeader, read_gguf_header
from daemon.models.gguf_kinds import check_kinds
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_files import write

TOKENS = ["<s>", "</s>", "a", "b"]
FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e4,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 1, 6],
    "tokenizer.ggml.scores": [0.0] * 4,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}

TEXT, TEXTS, FLAG = "a text", "a list of texts", "true or false"
COUNT, SIZE = "a whole number, 0 or more", "a whole number above 0"
NUMBER, POSITIVE = "a number", "a number above 0"
KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "general.architecture": (TEXT, (7, ["llama"])),
    "general.name": (TEXT, (7,)),
    "general.alignment": ("a power of two", (0, 7, "x", True)),
    "general.sampling.temp": (NUMBER, ("x", True, float("nan"))),
    "general.sampling.top_k": ("a whole number", (1.5, "x", True)),
    "split.count": (COUNT, ("x", -1)),
    "split.no": (COUNT, ("x",)),
    "tokenizer.chat_template": (TEXT, (7, True, ["x"])),
    "tokenizer.chat_template.rag": (TEXT, (7,)),
    "tokenizer.chat_templates": (TEXTS, (7, "x", [7])),
    "tokenizer.huggingface.json": (TEXT, (7,)),
    "tokenizer.ggml.model": (TEXT, (7, ["gpt2"])),
    "tokenizer.ggml.pre": (TEXT, (["x"], True)),
    "tokenizer.ggml.tokens": (TEXTS, ("x", [1, 2, 3, 4])),
    "tokenizer.ggml.merges": (TEXTS, (7, "x", [7])),
    "tokenizer.ggml.scores": ("a list of numbers", (7, ["x"] * 4, [float("nan")] * 4)),
    "tokenizer.ggml.token_type": (
        "a list of kinds of tokens, each 1 to 6",
        (7, ["a"] * 4, [1.0] * 4, [True] * 4, [1, 1, 1, 9], [-1] * 4, [1, 0, 1, 1]),
    ),
    "tokenizer.ggml.add_bos_token": (FLAG, (7, "x", [True])),
    "tokenizer.ggml.add_space_prefix": (FLAG, ("x", 0)),
    "tokenizer.ggml.eos_token_id": (COUNT, (True, 1.0, "x", [1], -1)),
    "tokenizer.ggml.mask_token_id": (COUNT, ("x", [1])),
    "tokenizer.ggml.token_type_count": (COUNT, ("x", 1.5)),
    "llama.context_length": (SIZE, (0, "x", 1.5, True)),
    "llama.embedding_length": (SIZE, (0,)),
    "llama.block_count": (SIZE, (0, 2.0)),
    "llama.vocab_size": (SIZE, (0,)),
    "llama.attention.head_count": (SIZE, (0, -1, True, [4, 0])),
    "llama.attention.head_count_kv": (SIZE, (0, [0, 0], ["x"])),
    "llama.attention.key_length": (SIZE, (0, 1.5)),
    "llama.attention.sliding_window": (COUNT, (-1, 1.5, True)),
    "llama.attention.sliding_window_pattern": (COUNT, (-1, 1.5, [1.5], "x")),
    "llama.feed_forward_length": (COUNT, (-1, 1.5)),
    "llama.expert_used_count": (COUNT, (True, 1.5)),
    "llama.expert_weights_norm": (FLAG, (7, 1)),
    "llama.use_parallel_residual": (FLAG, (1,)),
    "llama.attention.layer_norm_rms_epsilon": (
        "a number, 0 or more",
        (float("nan"), -1.0, True, "x"),
    ),
    "llama.rope.freq_base": (POSITIVE, (0.0, -1.0, float("nan"), float("inf"), "x", True)),
    "llama.rope.dimension_count": (SIZE, (1.5, 0)),
    "llama.rope.scaling.type": (TEXT, (7, [7])),
    "llama.rope.scaling.factor": (NUMBER, ("x", float("nan"), True)),
    "llama.rope.scaling.original_context_length": (COUNT, (1.5, "x")),
    "llama.rope.scaling.yarn_beta_fast": (NUMBER, ("x",)),
    "llama.tensor_data_layout": (TEXT, (7,)),
    "llama.a_field_of_tomorrow": ("a number or a list of numbers", ("x", ["x"])),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_value_of_another_kind_is_refused_by_the_name_of_its_field(name: str) -> None:
    words, values = KINDS[name]
    for value in values:
        with pytest.raises(ModelError, match=rf"{re.escape(name)} (is|has) ") as raised:
            check_kinds(FIELDS | {name: value})
        assert str(raised.value).endswith(f", and must be {words}"), (value, raised.value)


def test_values_of_the_right_kinds_pass() -> None:
    check_kinds(FIELDS)
    check_kinds(FIELDS | {"tokenizer.ggml.token_type": [1, 2, 3, 4], "general.name": "x"})
    check_kinds(FIELDS | {"llama.attention.head_count_kv": [2, 1], "llama.rope.freq_base": 5})
    check_kinds(FIELDS | {"llama.attention.sliding_window_pattern": [True, False]})
    check_kinds(FIELDS | {"vendor.quantized_at": ["noon", 7], "general.tags": ["x"]})


def test_the_wrong_one_of_many_is_shown_and_a_long_one_in_part() -> None:
    with pytest.raises(ModelError, match="token_type has 9, and"):
        check_kinds(FIELDS | {"tokenizer.ggml.token_type": [1] * 10_000 + [9]})
    with pytest.raises(ModelError) as raised:
        check_kinds(FIELDS | {"tokenizer.ggml.pre": ["x"] * 10_000})
    assert len(str(raised.value)) < 200


def test_a_file_is_refused_as_soon_as_its_header_is_read(tmp_path: Path) -> None:
    put = {"tokenizer.chat_template": 7}
    path = write(tmp_path / "tiny.gguf", lambda _name: "Q4_0", put=put)
    with pytest.raises(ModelError, match=r"tiny\.gguf: tokenizer\.chat_template is 7, and"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    "name",
    [
        "attention.head_count",
        "attention.head_count_kv",
        "feed_forward_length",
        "block_count",
        "attention.key_length",
        "attention.sliding_window",
        "rope.freq_base",
        "rope.scaling.factor",
    ],
)
def test_a_value_for_each_layer_is_refused_by_name(name: str) -> None:
    for values, words in (([2, 2], "a list"), ([4, 2], "differs from layer to layer")):
        with pytest.raises(ModelError, match=rf"llama\.{name} .*{words}"):
            check_fields(GgufHeader(FIELDS | {f"llama.{name}": values}, ()))


def test_more_experts_than_there_are_cannot_be_used() -> None:
    counts = {"llama.expert_count": 6, "llama.expert_used_count": 7}
    with pytest.raises(ModelError, match="expert_used_count is 7, and there are 6 experts"):
        check_fields(GgufHeader(FIELDS | counts, ()))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.expert_count": 6}, "the field llama.expert_used_count is missing"),
        ({"llama.attention.head_count": 7}, "head_count is 7, which does not divide 32"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        check_fields(GgufHeader(FIELDS | fields, ()))
