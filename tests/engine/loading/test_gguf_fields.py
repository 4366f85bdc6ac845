"""A GGUF file's fields and tensors: each is used, known to say nothing, or refused by its name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import load_model
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_files import (
    CONTEXT_LEN,
    EXPERT_INNER,
    EXPERTS,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB_SIZE,
    WIDTH,
    write,
)

HEAD_DIM = WIDTH // HEADS
RNG = np.random.default_rng(5)


def all_alike(_name: str) -> str:
    return "Q4_0"


def converted(folder: Path, architecture: str = "llama", **what: Any) -> dict[str, Any]:
    """The configuration made of a file, with what llmd has noted of its fields."""
    path = write(folder / "tiny.gguf", all_alike, architecture, **what)
    convert(path, folder / "made")
    config: dict[str, Any] = json.loads((folder / "made" / "config.json").read_text())
    config["unused"] = json.loads((folder / "made" / "gguf.json").read_text()).get("unused", [])
    return config


def own(architecture: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name
        if "." in name and name.split(".")[0] in ("general", "vendor", "tokenizer")
        else f"{architecture}.{name}": value
        for name, value in fields.items()
    }


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
USED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"rope.freq_base": 5e5}, {"rope_parameters.rope_theta": 5e5}),
    ("qwen2", {"rope.freq_base": 1e6}, {"rope_parameters.rope_theta": 1e6}),
    ("llama", {"attention.layer_norm_rms_epsilon": 0.25}, {"rms_norm_eps": 0.25}),
    ("llama", {"context_length": 77}, {"max_position_embeddings": 77}),
    (
        "llama",
        {**YARN, "rope.scaling.original_context_length": 64},
        {
            "rope_parameters.rope_type": "yarn",
            "rope_parameters.factor": 4.0,
            "rope_parameters.original_max_position_embeddings": 64,
        },
    ),
    ("qwen3", YARN, {"rope_parameters.original_max_position_embeddings": CONTEXT_LEN}),
    (
        "llama",
        {**YARN, "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
        {"rope_parameters.beta_fast": 16.0, "rope_parameters.beta_slow": 2.0},
    ),
    (
        "llama",
        {**YARN, "rope.scaling.attn_factor": 0.5},
        {"rope_parameters.attention_factor": 0.5 * (0.1 * float(np.log(4)) + 1)},
    ),
    (
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope_parameters.rope_type": "linear", "rope_parameters.factor": 4.0},
    ),
    ("llama", {"rope.scale_linear": 4.0}, {"rope_parameters.rope_type": "linear"}),
    ("llama", {"rope.scaling.factor": 2.0}, {"rope_parameters.rope_type": "linear"}),
    (
        "llama",
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope_parameters.rope_type": "default"},
    ),
    ("qwen3moe", {"expert_weights_norm": True}, {"norm_topk_prob": True}),
    ("qwen2moe", {"expert_used_count": 3}, {"num_experts_per_tok": 3}),
]


@pytest.mark.parametrize(("architecture", "fields", "says"), USED)
def test_a_field_is_in_the_configuration(
    architecture: str, fields: dict[str, Any], says: dict[str, Any], tmp_path: Path
) -> None:
    config = converted(tmp_path, architecture, put=own(architecture, fields))
    for name, value in says.items():
        found: Any = config
        for part in name.split("."):
            found = found[part]
        assert found == (pytest.approx(value) if isinstance(value, float) else value), name


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(
        ("llama", {name: value})
        for name, value in {
            "logit_scale": 0.1,
            "attention.causal": False,
            "attention.sliding_window": 16,
            "attention.key_length": 32,
            "attention.clamp_kqv": 8.0,
            "attention.max_alibi_bias": 8.0,
            "attention.scale": 0.5,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "expert_gating_func": 2,
            "expert_weights_scale": 2.5,
            "leading_dense_block_count": 1,
            "nextn_predict_layers": 1,
            "pooling_type": 1,
            "rope.dimension_count": 32,
            "rope.dimension_sections": [16, 24, 24, 0],
            "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.2,
            "rope.scaling.alpha": 1000.0,
            "use_parallel_residual": True,
            "tensor_data_layout": "another",
            "a_field_of_tomorrow": 1,
            "attention.a_field_of_tomorrow": "x",
            "rope.freq_base_swa": 2e4,
        }.items()
    ),
    ("llama", {**YARN, "rope.scaling.yarn_ext_factor": 0.5}),
    ("llama", {**YARN, "rope.scaling.yarn_log_multiplier": 0.1}),
    ("qwen3", {"attention.value_length": 64}),
    ("llama", {"attention.head_count": "x"}),
    ("qwen2moe", {"expert_used_count": 0}),
    ("llama", {"tokenizer.ggml.merges": 7}),
    ("gemma3", {"context_length": 8192, "attention.sliding_window": 0}),
    ("gpt-oss", {"context_length": 8192, "attention.sliding_window": 0}),
    ("gemma3", {"attn_logit_softcapping": 50.0}),
    ("qwen2moe", {"expert_weights_norm": True}),
    ("qwen3moe", {"expert_gating_func": 2}),
    ("qwen3moe", {"expert_weights_scale": 2.5}),
    ("qwen3moe", {"expert_group_count": 4}),
    ("llama", {"general.type": "adapter"}),
    ("llama", {"general.quantization_version": 1}),
    ("llama", {"tokenizer.ggml.a_field_of_tomorrow": 1}),
    ("llama", {"tokenizer.ggml.eot_token_id": VOCAB_SIZE}),
    ("llama", {"tokenizer.ggml.pre": "a pre-tokenizer of tomorrow"}),
    ("llama", {"tokenizer.ggml.model": "bert"}),
    ("llama", {"tokenizer.ggml.token_type": [1, 2, 3]}),
]


@pytest.mark.parametrize(("architecture", "fields"), REFUSED)
def test_a_field_that_nobody_computes_is_refused_by_name(
    architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    named = own(architecture, fields)
    words = {
        "attention.key_length": "rope.dimension_count is 64",
        "attention.sliding_window": "window",
    }
    name = next(reversed(fields))
    said = words.get(name, next(reversed(named)).replace(".", r"\."))
    said = "heads of keys and values differ" if name == "attention.value_length" else said
    with pytest.raises(ModelError, match=said):
        converted(tmp_path, architecture, put=named)


@pytest.mark.parametrize(
    "name",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_field_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"the field llama\.{name} is missing"):
        converted(tmp_path, drop=[f"llama.{name}"])


def test_a_window_that_is_missing_is_named(tmp_path: Path) -> None:
    window, longer = "gemma3.attention.sliding_window", {"gemma3.context_length": 8192}
    with pytest.raises(ModelError, match=rf"the field {window} is missing"):
        converted(tmp_path, "gemma3", drop=[window], put=longer)


NOTHING: dict[str, Any] = {
    "logit_scale": 1.0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.scale": HEAD_DIM**-0.5,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.finetuned": True,
    "tensor_data_layout": "Meta AI original pth",
    "general.url": "https://example.org",
    "general.base_model.0.name": "tiny",
    "tokenizer.ggml.fim_pre_token_id": 3,
    "tokenizer.ggml.mask_token_id": 3,
}


def test_what_says_nothing_changes_nothing(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    plain = converted(tmp_path / "a")
    assert converted(tmp_path / "b", put=own("llama", NOTHING)) == plain
    assert plain["unused"] == []


def test_fields_of_other_programs_are_noted(tmp_path: Path) -> None:
    fields = {"vendor.quantized_at": "noon", "general.sampling.xtc_threshold": 0.5}
    assert converted(tmp_path, put=fields)["unused"] == list(fields)


def test_recommended_sampling_is_the_default(tmp_path: Path) -> None:
    converted(tmp_path, put={"general.sampling.temp": 0.5, "general.sampling.top_k": 7})
    said = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert (said["temperature"], said["top_k"]) == (0.5, 7)


def test_a_field_that_differs_by_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="feed_forward_length differs from layer to layer"):
        converted(tmp_path, put={"llama.feed_forward_length": [512, 256]})


def test_where_a_file_does_not_say_llama_cpp_counts(tmp_path: Path) -> None:
    config = converted(tmp_path, "qwen3moe", drop=["qwen3moe.rope.freq_base"])
    assert config["rope_parameters"]["rope_theta"] == 10000.0


def biases() -> dict[str, np.ndarray]:
    sides = {"q": WIDTH, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    return {
        f"blk.{layer}.attn_{part}.bias": RNG.normal(0, 3, sides[part])
        for layer in range(LAYERS)
        for part in "qkv"
    }


def logits(folder: Path) -> torch.Tensor:
    model: Any = load_model(folder, "float32", torch.device("cpu"))
    model.set_attn_implementation("eager")
    tokens = torch.arange(2, 21)[None]
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


def test_biases_of_attention_are_computed_with(tmp_path: Path) -> None:
    """A llama may have them; what each row's bias is follows the order of the weights' rows."""
    stored = biases()
    config = converted(tmp_path, add=stored)
    assert config["attention_bias"] is True
    model: Any = load_model(tmp_path / "made", "float32", torch.device("cpu"))
    layer = model.model.layers[1].self_attn
    assert np.array_equal(layer.v_proj.bias.numpy(), stored["blk.1.attn_v.bias"].astype(np.float32))
    pairs = stored["blk.1.attn_q.bias"].reshape(HEADS, HEAD_DIM // 2, 2).astype(np.float32)
    assert np.array_equal(layer.q_proj.bias.numpy(), pairs.swapaxes(1, 2).ravel())
    assert not layer.o_proj.bias.any()
    with_biases = logits(tmp_path / "made")
    (tmp_path / "plain").mkdir()
    converted(tmp_path / "plain")
    assert (with_biases - logits(tmp_path / "plain" / "made")).abs().max() > 0.1


def test_biases_of_an_mlp_are_computed_with(tmp_path: Path) -> None:
    added = {f"blk.{layer}.ffn_up.bias": RNG.normal(0, 3, 512) for layer in range(LAYERS)}
    assert converted(tmp_path, add=added)["mlp_bias"] is True
    model: Any = load_model(tmp_path / "made", "float32", torch.device("cpu"))
    bias = model.model.layers[0].mlp.up_proj.bias
    assert np.array_equal(bias.numpy(), added["blk.0.ffn_up.bias"].astype(np.float32))


ADDED: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "sinks": ("llama", {"blk.0.attn_sinks.weight": np.ones(HEADS)}),
    "norms of heads": ("llama", {"blk.0.attn_q_norm.weight": np.ones(HEAD_DIM)}),
    "a norm": ("llama", {"blk.0.post_attention_norm.weight": np.ones(WIDTH)}),
    "a bias of the head": ("llama", {"output.bias": np.ones(VOCAB_SIZE)}),
    "a bias of a norm": ("llama", {"output_norm.bias": np.ones(WIDTH)}),
    "a layer": ("llama", {"blk.2.attn_norm.weight": np.ones(WIDTH)}),
    "a router": ("llama", {"blk.0.ffn_gate_inp.weight": np.ones((8, WIDTH))}),
    "a bias of experts": ("qwen3moe", {"blk.0.exp_probs_b.bias": np.ones(6)}),
    "a bias of what experts gate": ("qwen3moe", {"blk.0.ffn_up_exps.bias": np.ones((6, 256))}),
    "a bias of what experts say": ("qwen3moe", {"blk.0.ffn_down_exps.bias": np.ones((6, 256))}),
    "scales": ("llama", {"blk.0.attn_q.scale": np.ones(1)}),
    "a bias that the type has none of": ("qwen2", {"blk.0.attn_output.bias": np.ones(WIDTH)}),
    "a name of tomorrow": ("llama", {"a.name.of.tomorrow": np.ones(3)}),
}


def test_a_mixture_without_its_experts_is_refused(tmp_path: Path) -> None:
    experts = own("llama", {"expert_used_count": 2, "expert_count": 8})
    with pytest.raises(ModelError, match=r"mixtral .* no place for the tensor blk.0.ffn_gate"):
        converted(tmp_path, "llama", put=experts)


def test_factors_of_long_sequences_alone_are_refused(tmp_path: Path) -> None:
    added = {"rope_factors_long.weight": np.ones(HEAD_DIM // 2)}
    with pytest.raises(ModelError, match=r"rope_factors_short\.weight is missing beside"):
        converted(tmp_path, "llama", add=added)


@pytest.mark.parametrize("kind", ADDED)
def test_a_tensor_that_no_weight_takes_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    architecture, added = ADDED[kind]
    (name,) = added
    with pytest.raises(ModelError, match=f"no place for the tensor {name}"):
        converted(tmp_path, architecture, add=added)


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_q.weight",
        "blk.1.ffn_down.weight",
        "blk.1.ffn_norm.weight",
    ],
)
def test_a_tensor_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"lacks the tensor {name}"):
        converted(tmp_path, skip=[name])


@pytest.mark.parametrize("name", ["blk.0.ffn_down_exps.weight", "blk.1.ffn_gate_inp.weight"])
def test_experts_that_are_missing_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="lacks the tensor"):
        converted(tmp_path, "qwen3moe", skip=[name])


def test_a_tensor_of_another_size_is_named(tmp_path: Path) -> None:
    said = (
        r"blk\.0\.ffn_(gate|up|down)\.weight is \[512, 256\], and its fields ask for \[500, 256\]"
    )
    with pytest.raises(ModelError, match=said):
        converted(tmp_path, put={"llama.feed_forward_length": 500})


@pytest.mark.parametrize("architecture", ["qwen2moe", "gpt-oss"])
def test_a_stack_with_another_count_of_experts_is_named(architecture: str, tmp_path: Path) -> None:
    name, sides = "blk.0.ffn_up_exps.weight", (EXPERTS - 1, EXPERT_INNER, WIDTH)
    said = (
        rf"{name} is \[{EXPERTS - 1}, {EXPERT_INNER}, {WIDTH}\], and its fields ask for "
        rf"\[{EXPERTS}, {EXPERT_INNER}, {WIDTH}\]"
    )
    with pytest.raises(ModelError, match=said):
        converted(tmp_path, architecture, skip=[name], add={name: np.ones(sides)})
