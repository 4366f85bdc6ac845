"""What is read of a model folder before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemon.engine.loading.resolve import resolve_here, shape_here
from daemon.memory.layout import KVHeads
from daemon.models.resolved import Resolved
from daemon.models.resolving import ask_child, resolve
from daemon.models.shape import ModelError
from daemon.models.supported import check_folder, refusals
from daemon.models.unread import unread_notes
from tests.shapes import tiny_config

LLAMA = tiny_config(num_hidden_layers=3, vocab_size=100, dtype="bfloat16")


ENCODERS = ("electra", "camembert", "ernie", "data2vec-text", "bert")
OWN_ATTENTION = ("falcon", "codegen", "gptj")


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, path / "model.safetensors")
    return path


def test_a_shape_is_read_from_json_and_headers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    shape = shape_here(folder)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (3, 4, 2)
    assert (shape.head_dim, shape.hidden_size, shape.vocab_size) == (16, 64, 100)
    assert (shape.context_len, shape.dtype, shape.eos_token_ids) == (256, "bfloat16", (1,))
    assert shape.num_params == 17
    assert shape.weight_bytes("float32") == 68
    assert shape.weight_bytes("bfloat16") == 34
    check_folder(folder, resolve_here(folder))


def test_generation_config_says_what_ends_an_answer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert shape_here(folder).eos_token_ids == (7, 9, 1)  # and what config.json says


def test_older_names_of_sizes_are_known(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 64}
    config |= {"vocab_size": 10}
    shape = shape_here(folder_of(tmp_path / "m", config))
    assert (shape.num_kv_heads, shape.head_dim, shape.context_len) == (2, 16, 64)


def resolved(tmp_path: Path, config: dict[str, Any]) -> Resolved:
    return resolve_here(folder_of(tmp_path / "m", config))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model_type": "minimax", "architectures": ["MiniMaxForCausalLM"]},
            "linear_attention",
        ),
        ({"model_type": "deepseek_v32"}, "an indexer chooses"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {}}, "images"),
        ({"architectures": ["LlamaModel"]}, "not a causal language model"),
        ({"alibi": True}, "ALiBi"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized by bitsandbytes"),
        ({"model_type": "t5gemma2_encoder"}, "no causal language model"),
        ({"model_type": "diffllama"}, "attend twice"),
        *(({"model_type": name}, "see those after") for name in ENCODERS),
        *(({"model_type": name}, "attention interface") for name in OWN_ATTENTION),
        ({"dtype": "float64"}, "stored as float64"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, and must be 0 or more"),
        ({"rope_theta": -1.0}, "rope_theta of its rotary positions is -1.0"),
        ({"rope_theta": 0}, "rope_theta of its rotary positions is 0"),
        ({"rope_theta": "x"}, "rope_theta of its rotary positions is 'x'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor of its rotary"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, "factor of its rotary"),
        *(
            ({"model_type": name, "sliding_window": window}, f"sliding_window is {window}")
            for name in ("gemma3_text", "gpt_oss", "olmo3")
            for window in (None, 0, -1)
        ),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3},
            "sliding_window is None",
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": -64}, "chunked_attention"),
        ({"per_layer_config": {1: {"attention_bias": True}}}, "differ in attention_bias"),
    ],
)
def test_other_models_are_refused_by_what_they_do(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    found = list(refusals(resolved(tmp_path, {**LLAMA, **change})))
    assert any(words in reason for reason in found), found


def test_defaults_of_a_type_count_as_if_they_were_said(tmp_path: Path) -> None:
    """A folder of mistral without the key has transformers' window of 4096 tokens."""
    config = {**LLAMA, "model_type": "mistral", "max_position_embeddings": 8192}
    found = resolved(tmp_path, config)
    assert found.window == 4096 and not list(refusals(found))


def test_latent_rows_are_what_layers_hold(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "deepseek_v3", "kv_lora_rank": 24, "qk_rope_head_dim": 8}
    found = resolved(tmp_path, config | {"architectures": ["DeepseekV3ForCausalLM"]})
    assert found.layer_heads == (KVHeads(1, 32, latent=24),) * 3
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (4, 1, 32)
    assert not list(refusals(found))


def test_layers_that_share_keys_count_where_the_type_has_them_alone(tmp_path: Path) -> None:
    found = resolved(tmp_path, {**LLAMA, "num_kv_shared_layers": 1})
    assert not found.layer_heads and unread_notes(found) == ["num_kv_shared_layers"]


def test_legacy_names_are_resolved_first(tmp_path: Path) -> None:
    """phi3 called its factors by length "su" and "yarn" once; they are what is longrope now."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 64}
    config |= {"rope_scaling": {"type": "yarn", **factors}}
    config |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    found = resolved(tmp_path, config)
    assert [rope.kind for rope in found.ropes] == ["longrope"] and not list(refusals(found))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sliding_window": None},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral"},
        {"model_type": "mistral", "sliding_window": 128},
        {"model_type": "gemma2"},
        {"model_type": "gpt_oss"},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 128, "layer_types": ["full_attention"] * 3},
        {"model_type": "gpt_neox", "num_key_value_heads": 4},
    ],
)
def test_windows_caps_and_sinks_are_no_reasons(change: dict[str, Any], tmp_path: Path) -> None:
    assert list(refusals(resolved(tmp_path, {**LLAMA, **change}))) == []


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4}, 1),
        ({"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "multi_query": False}, 4),
        ({"model_type": "falcon", "num_attention_heads": 4, "hidden_size": 64}, 1),
        ({"model_type": "falcon", "num_attention_heads": 4, "multi_query": False}, 4),
        ({"model_type": "falcon", "num_kv_heads": 2, "new_decoder_architecture": True}, 2),
        ({"model_type": "llama", "num_attention_heads": 4}, 4),
    ],
)
def test_heads_of_keys_are_counted_as_the_models_do(
    config: dict[str, Any], heads: int, tmp_path: Path
) -> None:
    assert resolved(tmp_path, config).num_kv_heads == heads


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "tomorrow"}, "does not know the model type 'tomorrow'"),
        ({"model_type": None}, "does not say model_type"),
        ({"num_attention_heads": "four"}, "does not take it for a llama"),
        ({"rope_scaling": {"rope_type": "nobody"}}, r"of an unknown kind \(nobody\)"),
        ({"num_attention_heads": 0}, "does not take it for a llama"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "m", {**LLAMA, **change})
    with pytest.raises(ModelError, match=words) as raised:
        check_folder(folder, resolve_here(folder))
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


class Asked:
    """Answers as the child process would, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> Resolved:
        self.count += 1
        return resolve_here(folder)


def test_a_configuration_is_resolved_once(tmp_path: Path) -> None:
    folder, cache, ask = folder_of(tmp_path / "m", LLAMA), tmp_path / "cache", Asked()
    first = resolve(folder, cache, ask)
    assert resolve(folder, cache, ask) == first and ask.count == 1
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 5}))
    assert resolve(folder, cache, ask).num_layers == 5 and ask.count == 2
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    resolve(folder, cache, ask)
    assert ask.count == 3


@pytest.mark.parametrize("text", [b"", b"{}", b"\0", b'{"key": "another", "resolved": {}}', None])
def test_a_kept_configuration_that_is_corrupt_or_foreign_is_asked_for(
    text: bytes | None, tmp_path: Path
) -> None:
    folder, cache, ask = folder_of(tmp_path / "m", LLAMA), tmp_path / "cache", Asked()
    first = resolve(folder, cache, ask)
    (kept,) = (cache / "configurations").iterdir()
    whole = kept.read_bytes()
    if text is None:  # another folder's answer under this one's name
        other = folder_of(tmp_path / "other", {**LLAMA, "hidden_size": 128})
        kept.unlink()
        resolve(other, cache, ask)
        (foreign,) = (cache / "configurations").iterdir()
        text = foreign.read_bytes()
    kept.write_bytes(text)
    before = ask.count
    assert resolve(folder, cache, ask) == first and ask.count == before + 1
    assert kept.read_bytes() == whole


def test_the_child_process_says_the_same(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    assert ask_child(folder) == resolve_here(folder)
    (folder / "config.json").write_text(json.dumps({**LLAMA, "model_type": "tomorrow"}))
    with pytest.raises(ModelError, match="does not know the model type 'tomorrow'"):
        ask_child(folder)


def test_missing_and_pickled_files_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    found = resolve_here(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        check_folder(folder, found)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        check_folder(folder, found)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="pickled"):
        check_folder(folder, found)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json does not hold a JSON object"):
        resolve_here(folder)


def test_an_index_may_not_leave_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    index = {"weight_map": {"a": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside the folder"):
        shape_here(folder)


@pytest.mark.parametrize(
    "said",
    [
        {"logit_scale": 0.1},
        {"sliding_window": 16},
        {"residual_multiplier": 0.22},
        {"final_logit_softcapping": 30.0},
        {"use_parallel_residual": True},
        {"use_alibi": True},
        {"rope_interleave": True},
        {"swiglu_limit": 7.0},
        {"clip_qkv": 1},
        {"attention_window": 1},
        {"is_causal": False},
        {"no_rope_layers": [0, 1]},
        {"norm_type": "layernorm"},
        {"activation": "gelu"},
        {"hidden_activation": "relu2"},
        {"lm_head_bias": True},
        {"use_bias": True},
        {"qkv_bias": True},
        {"attention_sink": True},
        {"attention_sink_size": 4},
        {"num_experts": 8},
        {"moe_intermediate_size": 128},
        {"layer_norm_eps": 0.25},
        {"n_head_kv": 1},
        {"rotary_base": 5e5},
        {"partial_rotary_factor": 0.5},
        {"qk_norm": True},
        {"position_embedding_type": "alibi"},
        {"attention_type": "local"},
        {"gated_mlp": False, "gating_type": "none"},
        {"mup_scale": 2.0},
        {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},  # its code only keeps it
    ],
)
def test_what_a_type_would_ignore_of_its_configuration_is_refused(
    said: dict[str, Any], tmp_path: Path
) -> None:
    name = [*said][-1]
    resolved = resolve_here(folder_of(tmp_path / "m", {**LLAMA, **said}))
    reasons = list(refusals(resolved))
    assert any(name in reason or "see those after them" in reason for reason in reasons), reasons


def test_what_says_nothing_in_a_configuration_is_served(tmp_path: Path) -> None:
    said: dict[str, Any] = {
        "logit_scale": 1.0,
        "sliding_window": None,
        "_name_or_path": "x",
        "unsloth_version": "2",
    }
    said |= {"residual_multiplier": 1, "auto_map": {"a": "b"}, "alibi": False, "is_causal": True}
    said |= {"norm_topk_prob": True, "attn_logit_softcapping": 0, "attention_window": -1}
    said |= {"query_pre_attn_scalar": 16, "attention_multiplier": 0.25}
    said |= {"norm_type": "rmsnorm", "activation": "silu", "num_experts": 0, "qk_norm": False}
    said |= {"lm_head_bias": False, "layer_norm_eps": 1e-6, "rotary_base": 10000, "no_bias": True}
    said |= {"use_flash_attn": True, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "num_kv_heads": 2}
    said |= {"attn_implementation": "sdpa", "position_embedding_type": "rope", "qkv_bias": False}
    said |= {"num_nextn_predict_layers": 1, "output_router_logits": False, "clip_qkv": None}
    resolved = resolve_here(folder_of(tmp_path / "m", {**LLAMA, **said}))
    assert not list(refusals(resolved))


def test_fields_of_other_programs_are_noted(tmp_path: Path) -> None:
    said = {"_name_or_path": "x", "auto_map": {}, "seq_length": 9, "a_field_of_tomorrow": 1}
    said |= {"norm_type": "rmsnorm", "unsloth_version": "2", "pretraining_tp": 1}
    said |= {"unk_token_id": 0}  # of the tokenizer; what is made of a GGUF file has it
    said |= {"quantization_config": {"quant_method": "awq", "bits": 4}}  # llmd reads it itself
    resolved = resolve_here(folder_of(tmp_path / "m", {**LLAMA, **said}))
    assert unread_notes(resolved) == ["seq_length", "a_field_of_tomorrow"]


DEFAULT = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rope_theta": 5e5, "rope_parameters": DEFAULT}, "rope_theta is 500000.0, and 10000.0 in"),
        (
            {"model_type": "phi", "partial_rotary_factor": 0.25}
            | {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.25, and 0.5 in",
        ),
        (
            {"rope_parameters": DEFAULT, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling has",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "type is linear and rope_type is yarn in its parameters of rotary positions",
        ),
        (
            {"rope_parameters": DEFAULT | {"type": "dynamic", "factor": 2.0}},
            "type is dynamic and rope_type is default",
        ),
        (
            {"model_type": "gemma3_text", "rope_theta": 1e4}
            | {
                "rope_parameters": {
                    "full_attention": DEFAULT | {"type": "linear", "factor": 8.0},
                    "sliding_attention": DEFAULT,
                }
            },
            "type is linear and rope_type is default",
        ),
        ({"dtype": "float32", "torch_dtype": "float16"}, "dtype is float32 and torch_dtype is fl"),
        ({"model_type": "gpt2", "n_embd": 32, "hidden_size": 64}, "hidden_size is 64 and n_embd"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(
    said: dict[str, Any], words: str, tmp_path: Path
) -> None:
    reasons = list(refusals(resolve_here(folder_of(tmp_path / "m", {**LLAMA, **said}))))
    assert any(f"its config.json contradicts itself: {words}" in one for one in reasons), reasons


@pytest.mark.parametrize(
    "said",
    [
        {"rope_theta": 1e4, "rope_parameters": DEFAULT},
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5},
        {"rope_parameters": DEFAULT, "rope_scaling": None, "torch_dtype": "bfloat16"},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16}},
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "mrope", "rope_type": "default"}},
    ],
)
def test_what_is_said_twice_alike_is_served(said: dict[str, Any], tmp_path: Path) -> None:
    assert not list(refusals(resolve_here(folder_of(tmp_path / "m", {**LLAMA, **said}))))


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (DEFAULT | {"mscale": 2.0}, "mscale"),
        (DEFAULT | {"rope_type": "linear", "factor": 2.0, "beta_fast": 16}, "beta_fast"),
        (DEFAULT | {"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        (DEFAULT | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_a_parameter_of_positions_that_their_kind_has_not_is_refused(
    parameters: dict[str, Any], name: str, tmp_path: Path
) -> None:
    said = {**LLAMA, "rope_parameters": parameters}
    reasons = list(refusals(resolve_here(folder_of(tmp_path / "m", said))))
    assert len(reasons) == 1 and name in reasons[0], reasons


MINIMAX = {**LLAMA, "model_type": "minimax_m2", "architectures": ["MiniMaxM2ForCausalLM"]}
ALWAYS = {
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "attn_type_list": [1, 1, 1],
}


def test_what_a_types_code_always_does_may_be_said(tmp_path: Path) -> None:
    """MiniMax-M2's published config.json says so, and transformers of its GGUF files."""
    assert not list(refusals(resolve_here(folder_of(tmp_path / "m", {**MINIMAX, **ALWAYS}))))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scoring_func", "tanh"),
        ("qk_norm_type", "per_head"),
        ("attn_type_list", [0, 1, 1]),
    ],
)
def test_what_a_types_code_never_does_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    found = resolve_here(folder_of(tmp_path / "m", {**MINIMAX, **ALWAYS, name: value}))
    assert any(one.startswith(f"{name} is ") for one in refusals(found))


def test_a_window_that_is_switched_off_is_no_window(tmp_path: Path) -> None:
    said = {**LLAMA, "sliding_window": 64, "use_sliding_window": False}
    assert not list(refusals(resolve_here(folder_of(tmp_path / "m", said))))


@pytest.mark.parametrize("kind", [{}, {"rope_type": "default", "type": "linear"}])
def test_a_scaling_of_positions_without_a_kind_is_refused(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    said = {**LLAMA, "rope_scaling": {**kind, "factor": 4.0}}
    reasons = list(refusals(resolve_here(folder_of(tmp_path / "m", said))))
    assert reasons[-1] == "its rotary positions have a factor of 4.0 and no kind"
