"""GGUF files of many architectures: logits are those of the same numbers in a folder."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from daemon.engine.loading.convert import convert
from daemon.engine.loading.gguf_fields import layer_fields, put_fields
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import resolve_here
from daemon.engine.quantised.experts import QuantisedExperts
from daemon.models.embedded import ensure_converted
from daemon.models.gguf_header import GgufHeader
from daemon.models.shape import ModelError
from daemon.models.supported import check_folder
from tests.engine.loading.gguf_cases import (
    CASES,
    CONTEXT_LEN,
    DEEPSEEK_V2,
    GEMMA_4_DENSE,
    GEMMA_4_SHARING,
    GRANITE_HYBRID_DENSE,
    GRANITE_SHARED,
    HEAD_DIM,
    LAYERS,
    VOCAB_SIZE,
    Case,
)
from tests.engine.loading.gguf_written import tiny, write_model
from tests.soak import SOAK

_SIZES: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": 5376,
    "block_count": 26,
    "attention.head_count": 32,
    "attention.head_count_kv": 16,
    "attention.key_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "feed_forward_length": 64,
}
_FORMS = ("F32", "Q4_0", "Q8_0") if SOAK else ("Q8_0",)
_TOKENS = torch.randint(2, VOCAB_SIZE, (2, 40), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("architecture", "form"),
    [
        *((architecture, form) for architecture in CASES for form in _FORMS),
        *((architecture, "F32") for architecture in ("qwen35", "granitehybrid") if not SOAK),
    ],
)
def test_logits_are_those_of_the_folder(architecture: str, form: str, tmp_path: Path) -> None:
    model = tiny(CASES[architecture])
    path = tmp_path / "tiny.gguf"
    write_model(path, architecture, model, form)
    served = _loaded(path, tmp_path)
    assert served.config.model_type == (CASES[architecture].served_as or model.config.model_type)
    expected = _logits(model)
    close = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(_logits(served), expected, rtol=0.0, atol=close)
    packed = [it for it in served.modules() if isinstance(it, QuantisedExperts)]
    assert bool(packed) == (form != "F32" and "expert_count" in CASES[architecture].fields)


@pytest.mark.parametrize(
    ("architecture", "case"),
    [
        ("gemma4", GEMMA_4_DENSE),
        ("gemma4", GEMMA_4_SHARING),
        ("granitehybrid", GRANITE_HYBRID_DENSE),
        ("granitemoe", GRANITE_SHARED),
    ],
)
def test_another_model_of_the_same_name(
    architecture: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, architecture, case)
    write_model(path := tmp_path / "tiny.gguf", architecture, model := tiny(case), "Q8_0")
    served, expected = _loaded(path, tmp_path), _logits(model)
    assert served.config.model_type == model.config.model_type
    close = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(_logits(served), expected, rtol=0.0, atol=close)


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_experts_gates_and_what_they_gate_may_be_one_tensor(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["olmoe"]._replace(fused=True)
    monkeypatch.setitem(CASES, "olmoe", case)
    write_model(path := tmp_path / "tiny.gguf", "olmoe", model := tiny(case), form)
    expected = _logits(model)
    close = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(_logits(_loaded(path, tmp_path)), expected, rtol=0.0, atol=close)


def test_softmax_and_queries_of_one_step_make_a_deepseek_v2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "deepseek2", DEEPSEEK_V2)
    write_model(path := tmp_path / "tiny.gguf", "deepseek2", model := tiny(DEEPSEEK_V2), "Q8_0")
    served, expected = _loaded(path, tmp_path), _logits(model)
    assert served.config.model_type == "deepseek_v2"
    close = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(_logits(served), expected, rtol=0.0, atol=close)


@pytest.mark.parametrize(
    ("architecture", "name", "value"),
    [
        ("dots1", "expert_gating_func", 1),
        ("glm4moe", "expert_gating_func", 1),
        ("minimax-m2", "expert_gating_func", 1),
        ("gemma4", "attention.value_length", 32),
        ("gemma4", "attention.sliding_window_pattern", [False, True] * 2),
        ("gemma4", "attention.head_count_kv", [2, 1, 1, 1]),
        ("gemma4", "rope.dimension_count_swa", 16),
        ("gemma4", "feed_forward_length", [128, 64, 128, 64]),
        ("gemma4", "attention.scale", 0.5),
        ("gemma4", "attention.shared_kv_layers", 3),
        ("gemma4", "attention.shared_kv_layers", [1, 1, 1, 1]),
        ("kimi-linear", "expert_gating_func", 1),
        ("kimi-linear", "attention.key_length", 64),
        ("llama4", "expert_gating_func", 1),
        ("nemotron_h_moe", "expert_gating_func", 1),
        ("granite", "rope.scaling.finetuned", False),
        ("granite", "residual_scale", float("nan")),
        ("glm4", "rope.dimension_count", 15),
        ("glm4", "rope.dimension_count", 64),
        ("glm4moe", "nextn_predict_layers", LAYERS),
        ("dots1", "leading_dense_block_count", 1.5),
        ("deepseek2", "attention.key_length", 64),
        ("deepseek2", "attention.head_count_kv", 2),
        ("deepseek2", "rope.dimension_count", 48),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(
    architecture: str, name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[architecture]
    monkeypatch.setitem(CASES, architecture, case._replace(fields={**case.fields, name: value}))
    write_model(path := tmp_path / "tiny.gguf", architecture, tiny(case), "F32")
    with pytest.raises(ModelError, match=re.escape(f"{architecture}.{name} is ")):
        convert(path, tmp_path / "made")


def test_a_whole_number_is_taken_where_there_may_be_fractions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"attention.layer_norm_rms_epsilon": 1, "final_logit_softcapping": 30}
    case = CASES["gemma4"]._replace(fields={**CASES["gemma4"].fields, **fields})
    monkeypatch.setitem(CASES, "gemma4", case)
    write_model(path := tmp_path / "tiny.gguf", "gemma4", tiny(case), "F32")
    convert(path, tmp_path / "made")
    made = json.loads((tmp_path / "made" / "config.json").read_text())
    text = made.get("text_config", made)
    assert (text["rms_norm_eps"], text["final_logit_softcapping"]) == (1.0, 30.0)


@pytest.mark.parametrize("factors", [[1.0] * 8 + [1e30] * 8, [1e30] * 8 + [1.0] * 24, [0.5] * 32])
def test_factors_that_are_not_those_of_a_head_are_refused(
    factors: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["gemma4"]._replace(tensors={"rope_freqs.weight": factors})
    monkeypatch.setitem(CASES, "gemma4", case)
    write_model(path := tmp_path / "tiny.gguf", "gemma4", tiny(case), "F32")
    with pytest.raises(ModelError, match=r"rope_freqs\.weight scales its rotary positions"):
        convert(path, tmp_path / "made")


def test_logits_are_not_scaled_where_a_file_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["command-r"]._replace(settings={"logit_scale": 1.0}, fields={})
    monkeypatch.setitem(CASES, "command-r", case)
    write_model(path := tmp_path / "tiny.gguf", "command-r", model := tiny(case), "F32")
    torch.testing.assert_close(_logits(_loaded(path, tmp_path)), _logits(model))


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("cohere2", "logit_scale"),
        ("dots1", "expert_shared_count"),
        ("glm4moe", "expert_shared_count"),
        ("gemma4", "attention.key_length_swa"),
        ("gemma4", "expert_feed_forward_length"),
        ("kimi-linear", "kda.head_dim"),
        ("llama4", "interleave_moe_layer_step"),
        ("nemotron_h_moe", "expert_shared_feed_forward_length"),
    ],
)
def test_a_field_that_llama_cpp_needs_is_missing(
    architecture: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[architecture]
    fields = {field: value for field, value in case.fields.items() if field != name}
    monkeypatch.setitem(CASES, architecture, case._replace(fields=fields))
    write_model(path := tmp_path / "tiny.gguf", architecture, tiny(case), "F32")
    with pytest.raises(ModelError, match=rf"{architecture}\.{name} is missing"):
        convert(path, tmp_path / "made")


@pytest.mark.parametrize(("window", "sees_all"), [(0, True), (8192, False)])
def test_a_llama_4_file_may_say_that_no_layer_has_chunks(window: int, sees_all: bool) -> None:
    own = {
        **_SIZES,
        "expert_count": 16,
        "expert_used_count": 1,
        "interleave_moe_layer_step": 1,
        "attention.sliding_window": window,
    }
    fields = {f"llama4.{name}": value for name, value in own.items()}
    header = GgufHeader({"general.architecture": "llama4", **fields}, ())
    said = layer_fields(header).settings
    config = AutoConfig.for_model("llama4_text", **said, num_hidden_layers=own["block_count"])
    put_fields(config, header)
    assert config.layer_types[:4] == ["full_attention" if sees_all else "chunked_attention"] * 3 + [
        "full_attention"
    ]
    assert config.no_rope_layers[:4] == [1, 1, 1, int(sees_all)]
    assert config.attn_temperature_tuning is not sees_all
    fields["llama4.attention.sliding_window"] = 16
    with pytest.raises(ModelError, match=r"llama4\.attention\.sliding_window is 16"):
        layer_fields(GgufHeader({"general.architecture": "llama4", **fields}, ()))


def test_queries_grow_with_positions_that_nothing_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "original_max_position_embeddings": CONTEXT_LEN,
        "llama_4_scaling_beta": 0.1,
    }
    case = CASES["mistral3"]
    fields = {k: v for k, v in case.fields.items() if not k.startswith("rope.scaling")}
    case = case._replace(settings={**case.settings, "rope_parameters": rope}, fields=fields)
    monkeypatch.setitem(CASES, "mistral3", case)
    write_model(path := tmp_path / "tiny.gguf", "mistral3", model := tiny(case), "F32")
    torch.testing.assert_close(_logits(_loaded(path, tmp_path)), _logits(model))


def _loaded(path: Path, cache: Path) -> Any:
    folder = ensure_converted(path, cache / "cache", convert, lambda _share: None)
    check_folder(folder, resolve_here(folder))  # as a start does
    model: Any = load_model(folder, "float32", torch.device("cpu"))
    model.set_attn_implementation("eager")
    return model


def _logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=_TOKENS, use_cache=False).logits
    return found


def test_layers_that_foretell_more_tokens_are_left_out(tmp_path: Path) -> None:
    model, path = tiny(CASES["glm4moe"]), tmp_path / "tiny.gguf"
    write_model(path, "glm4moe", model, "Q8_0", foretelling=1)
    served = _loaded(path, tmp_path)
    assert served.config.num_hidden_layers == LAYERS
    assert torch.allclose(_logits(served), _logits(model), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_divides_its_scores_by_the_width_for_each_head(
    architecture: str, layers: int
) -> None:
    config = AutoConfig.for_model(CASES[architecture].model_type, head_dim=HEAD_DIM)
    own = {**_SIZES, "block_count": layers}
    fields = {f"{architecture}.{name}": value for name, value in own.items()}
    put_fields(config, GgufHeader({"general.architecture": architecture, **fields}, ()))
    assert config.query_pre_attn_scalar == 168
    fields[f"{architecture}.block_count"] = 26
    put_fields(config, GgufHeader({"general.architecture": architecture, **fields}, ()))
    assert config.query_pre_attn_scalar == 128
