"""What is understood of quantised checkpoints before anything is loaded, and what is refused."""

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.models.quantisation import quantisation, read_quantisation
from daemon.models.quantised_layers import TensorHeader, find_quantised_layers
from daemon.models.schemes import Quantisation, Scheme
from daemon.models.shape import ModelError, read_json
from tests.engine.loading.checkpoints.read import FOLDERS, HERE
from tests.soak import tries

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
AUTO = {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.g*"]}
FP4 = {"type": "float", "strategy": "tensor_group", "group_size": 16}
IN_FP4: dict[str, Any] = {"numbers": "fp4", "group": 16}
SAID = [read_json(HERE / name / "config.json")["quantization_config"] for name in FOLDERS]
LAYER = "model.layers.0.self_attn.q_proj"


def compressed(form: str = "pack-quantized", **changes: Any) -> dict[str, Any]:
    """A configuration of compressed tensors; what is given changes the weights of its group."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, **changes}
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        (AWQ, Scheme(layout="awq", numbers="int4", group=128, symmetric=False)),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "zero_point": True},
            Scheme(layout="awq", numbers="int4", group=0, symmetric=False),
        ),
        (
            GPTQ,
            Scheme(
                layout="gptq",
                numbers="int4",
                group=128,
                symmetric=False,
                act_order=True,
                lowered_zeros=True,
            ),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"},
            Scheme(layout="gptq", numbers="int8"),
        ),
        (compressed(), Scheme(layout="packed", numbers="int4", group=32)),
        (
            compressed(num_bits=8, strategy=None, group_size=None, symmetric=False),
            Scheme(layout="packed", numbers="int8", group_rows=0, symmetric=False),
        ),
        (
            compressed("float-quantized", num_bits=8, type="float", strategy="block",
                       block_structure="128x64", group_size=None),
            Scheme(layout="plain", numbers="fp8", group=64, group_rows=128),
        ),
        (FP8, Scheme(layout="plain", numbers="fp8", group_rows=0, rounds_states=True)),
        (
            {**FP8, "fmt": "float8_e4m3fn"},
            Scheme(layout="plain", numbers="fp8", group_rows=0, rounds_states=True),
        ),
        (
            {**FP8, "weight_block_size": [128, 64]},
            Scheme(layout="plain", numbers="fp8", group=64, group_rows=128, rounds_states=True),
        ),
        (AUTO, Scheme(layout="gptq", numbers="int4", group=128, lowered_zeros=True)),
        (
            {**AUTO, "packing_format": "auto_round", "sym": False, "act_bits": 8},
            Scheme(layout="gptq", symmetric=False, numbers="int4", group=128, rounds_states=True),
        ),
        (
            {**AUTO, "packing_format": "auto_round:auto_awq", "group_size": -1},
            Scheme(layout="awq", numbers="int4"),
        ),
        (compressed("nvfp4-pack-quantized", **FP4), Scheme(layout="packed", **IN_FP4)),
        (MODELOPT, Scheme(layout="plain", rounds_states=True, **IN_FP4)),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {LAYER: {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
            },
            Scheme(layout="plain", **IN_FP4),
        ),
        (
            {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
            Scheme(layout="plain", numbers="fp8", rounds_states=True),
        ),
    ],
)  # fmt: skip
def test_a_configuration_says_how_a_layer_is_stored(said: dict[str, Any], scheme: Scheme) -> None:
    found = quantisation(said)
    assert found.scheme_of(LAYER) == scheme
    assert found.rounds_states == scheme.rounds_states


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "no JSON object"),
        ({}, "a method without a name, and llmd reads awq, gptq"),
        ({"quant_method": ["awq"]}, "a method without a name"),
        *(
            ({"quant_method": name}, f"quantized by {name}, and llmd reads awq, gptq, compressed")
            for name in ("bitsandbytes", "hqq", "aqlm", "exl3", "nvfp4", "quark")
        ),
        ({**AWQ, "bits": 8}, "AWQ to 8 bits, not to 4"),
        ({**AWQ, "version": "marlin"}, "layout marlin, not gemm"),
        ({**AWQ, "version": "ipex"}, "layout ipex, not gemm"),
        ({**AWQ, "version": "gemv_fast"}, "layout gemv_fast, not gemm"),
        ({**AWQ, "backend": "llm-awq"}, "layout llm-awq, not gemm"),
        ({**AWQ, "group_size": 0}, "AWQ in groups of 0"),
        ({**GPTQ, "bits": 3}, "GPTQ to 3 bits, not to 4 or 8"),
        ({**GPTQ, "bits": 2}, "GPTQ to 2 bits, not to 4 or 8"),
        (
            {**GPTQ, "bits": "4"},
            'for gptq is not understood: bits must be a whole number, and is "4"',
        ),
        ({"quant_method": "gptq"}, "for gptq is not understood: bits is missing"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "layout marlin, not gptq or gptq_v2"),
        ({**GPTQ, "is_marlin_format": True}, "layout marlin"),
        ({**GPTQ, "pack_dtype": "int16"}, "packed into int16, not into int32"),
        ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, "in another way for some layers"),
        ({**GPTQ, "rotation": "hadamard"}, "a rotation, which llmd does not apply"),
        (compressed("marlin-24"), "in the format marlin-24, not in pack-quantized"),
        (compressed("nvfp4-pack-quantized"), "in the format nvfp4-pack-quantized"),
        (compressed("nvfp4-pack-quantized", type="float"), "scales by group of 32"),
        (compressed("nvfp4-pack-quantized", **{**FP4, "symmetric": False}), "of float4"),
        ({**AUTO, "packing_format": "auto_round:llm_compressor"}, "packing format auto_round:llm"),
        ({**AUTO, "packing_format": "auto_gptq"}, "packing format auto_gptq, not in one of auto"),
        ({**AUTO, "bits": 2}, "AutoRound to 2 bits, not to 4 or 8"),
        ({**AUTO, "packing_format": "auto_round:auto_awq", "bits": 8}, "to 8 bits, not to 4"),
        ({**AUTO, "data_type": "mx_fp"}, "numbers of the type mx_fp, not int"),
        ({**AUTO, "rotation_config": {"block_size": 32}}, "with a rotation"),
        ({**AUTO, "super_bits": 6}, "with scales that are quantized too"),
        ({**AUTO, "extra_config": {"(": {}}}, "extra_config names layers by '\\('"),
        ({**AUTO, "extra_config": {"a": {"bits": 3}}}, "AutoRound to 3 bits"),
        ({**AUTO, "extra_config": {"a": {"sharp": 3}}}, "sharp is an unknown field"),
        ({**MODELOPT, "quant_algo": "NVFP4_AWQ"}, "by ModelOpt to NVFP4_AWQ, and llmd reads NVFP4"),
        ({**MODELOPT, "group_size": 32}, "by ModelOpt in groups of 32, not of 16"),
        ({**MODELOPT, "quant_algo": "MIXED_PRECISION"}, "MIXED_PRECISION, of no layers"),
        ({**MODELOPT, "config_groups": {"a": {"weights": {"num_bits": 8}}}}, "have float8"),
        ({"quant_method": "modelopt"}, "for modelopt is not understood: quant_algo is missing"),
        (compressed("mxfp4-pack-quantized"), "in the format mxfp4-pack-quantized"),
        (compressed(num_bits=3), "of int3 in the format pack-quantized, and llmd reads int4"),
        (compressed("int-quantized"), "of int4 in the format int-quantized"),
        (compressed(type="float"), "of float4 in the format pack-quantized"),
        (compressed(strategy="tensor_group"), "scales by tensor_group of 32"),
        (compressed(strategy="block", block_structure=[0, 1]), r"\[0, 1\] is no block"),
        (compressed(sharpness=1), "weights.sharpness is an unknown field"),
        ({**compressed(), "quantization_status": "frozen"}, "status is frozen, not compressed"),
        ({**compressed(), "sparsity_config": {"format": "sparse-24-bitmask"}}, "and sparse"),
        ({**compressed(), "transform_config": {"config_groups": {"a": 1}}}, "transform"),
        ({**compressed(), "ignore": ["re:("]}, "no pattern"),
        ({**compressed(), "config_groups": {}}, "without a group"),
        ({**FP8, "weight_block_size": [0, 128]}, "blocks of 0x128"),
        ({**FP8, "fmt": "e5m2"}, "stored as e5m2, not as FP8 of e4m3"),
        ({**FP8, "expert_dtype": "fp4"}, "stored as fp4"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(said: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words) as told:
        quantisation(said)
    assert "\n" not in str(told.value)


def test_layers_are_named_by_names_patterns_and_classes_in_this_order() -> None:
    said = compressed()
    groups = said["config_groups"]
    for name, targets, bits in (
        ("group_1", ["Embedding"], 8),
        ("group_2", ["re:.*down_proj", "model.layers.1.mlp.up_proj"], 8),
    ):
        groups[name] = copy.deepcopy(groups["group_0"])
        groups[name]["targets"] = targets
        groups[name]["weights"]["num_bits"] = bits
    said["ignore"] = ["lm_head", r"re:.*\.layers\.0\.mlp\..*"]
    found = quantisation(said)

    def numbers(layer: str) -> str | None:
        scheme = found.scheme_of(layer)
        return scheme.numbers if scheme else None

    assert numbers("lm_head") is None
    assert numbers("model.layers.0.mlp.down_proj") is None
    assert numbers("model.layers.1.mlp.down_proj") == "int8"
    assert numbers("model.layers.1.mlp.up_proj") == "int8"
    assert numbers("model.layers.11.mlp.up_proj") == "int4"
    assert numbers("model.embed_tokens") == "int8"
    said["ignore"] = ["Linear"]
    assert quantisation(said).scheme_of(LAYER) is None


def test_modules_that_are_not_converted_are_named_by_parts() -> None:
    found = quantisation({**AWQ, "modules_to_not_convert": ["mlp.gate", "model.layers.1", "head"]})
    for layer in ("model.layers.0.mlp.gate", "model.layers.1.mlp.up_proj", "head"):
        assert found.scheme_of(layer) is None
    for layer in ("model.layers.0.mlp.gate_proj", "model.layers.11.mlp.up_proj", "lm_head"):
        assert found.scheme_of(layer) is not None


def test_scales_of_keys_and_values_are_noted() -> None:
    scheme = {"num_bits": 8, "type": "float"}
    assert quantisation(compressed()).notes == ()
    (note,) = quantisation({**compressed(), "kv_cache_scheme": scheme}).notes
    assert "keys and values are not used" in note
    headers = {**_awq_headers(), f"{LAYER}.k_scale": TensorHeader("F32", (1,))}
    assert set(find_quantised_layers(quantisation(AWQ), headers)) == {f"{LAYER}.weight"}


def _awq_headers() -> dict[str, TensorHeader]:
    return {
        f"{LAYER}.qweight": TensorHeader("I32", (256, 4)),
        f"{LAYER}.qzeros": TensorHeader("I32", (2, 4)),
        f"{LAYER}.scales": TensorHeader("F16", (2, 32)),
    }


@pytest.mark.parametrize(
    ("said", "changes", "words"),
    [
        (AWQ, {"qzeros": None}, r"q_proj\.qzeros is missing"),
        (
            AWQ,
            {"qzeros": TensorHeader("I32", (4, 4))},
            r"has the shape \[4, 4\], and .* it \[2, 4\]",
        ),
        (AWQ, {"scales": TensorHeader("I8", (2, 32))}, "stored as I8, not as F16 or BF16 or F32"),
        (AWQ, {"qweight": TensorHeader("I32", (2, 256, 4))}, "not of two sides"),
        (AWQ, {"qweight": TensorHeader("I32", (0, 4))}, "not of two sides"),
        ({**AWQ, "group_size": 100}, {}, "q_proj.qzeros has the shape"),
        ({**AWQ, "group_size": 128, "modules_to_not_convert": ["q_proj"]}, {}, "leaves it out"),
        ({**FP8, "weight_block_size": [128, 128]}, {}, "stored as qweight, and .* otherwise"),
        (AWQ, {"qweight": None}, "says awq, and no layer is stored so"),
        (
            FP8,
            {"qweight": None, "weight": TensorHeader("F8_E5M2", (8, 64))},
            "stored as F8_E5M2, not as F8_E4M3",
        ),
        (
            FP8,
            {
                "qweight": None,
                "weight": TensorHeader("F8_E4M3", (8, 64)),
                "weight_scale_inv": TensorHeader("F8_E8M0", (1,)),
            },
            "stored as F8_E8M0, not as F16",
        ),
    ],
)
def test_a_layer_that_is_not_stored_as_it_should_be_is_named(
    said: dict[str, Any], changes: dict[str, TensorHeader | None], words: str
) -> None:
    headers: dict[str, TensorHeader | None] = {**_awq_headers()}
    headers |= {f"{LAYER}.{name}": header for name, header in changes.items()}
    found = {name: header for name, header in headers.items() if header is not None}
    with pytest.raises(ModelError, match=words):
        find_quantised_layers(quantisation(said), found)


@pytest.mark.parametrize(("act_order", "grouped"), [(True, False), (True, True), (False, True)])
def test_columns_in_another_order_need_their_groups(act_order: bool, grouped: bool) -> None:
    headers = {
        f"{LAYER}.qweight": TensorHeader("I32", (16, 32)),
        f"{LAYER}.qzeros": TensorHeader("I32", (4, 4)),
        f"{LAYER}.scales": TensorHeader("F16", (4, 32)),
    }
    said = quantisation({**GPTQ, "group_size": 32 if grouped else -1, "desc_act": act_order})
    if not grouped:
        headers[f"{LAYER}.qzeros"] = TensorHeader("I32", (1, 4))
        headers[f"{LAYER}.scales"] = TensorHeader("F16", (1, 32))
    if act_order and grouped:
        with pytest.raises(ModelError, match=r"q_proj\.g_idx is missing"):
            find_quantised_layers(said, headers)
    else:
        assert list(find_quantised_layers(said, headers)) == [f"{LAYER}.weight"]


def test_groups_that_are_no_whole_blocks_name_the_layer() -> None:
    headers = {
        f"{LAYER}.qweight": TensorHeader("I32", (96, 4)),
        f"{LAYER}.qzeros": TensorHeader("I32", (2, 4)),
        f"{LAYER}.scales": TensorHeader("F16", (2, 32)),
    }
    with pytest.raises(ModelError, match=r"q_proj: rows of 96 in groups of 48 are no whole blocks"):
        find_quantised_layers(quantisation({**AWQ, "group_size": 48}), headers)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KEYS = st.sampled_from(sorted({key for said in SAID for key in said})) | st.text(max_size=4)
ANYTHING = st.recursive(
    SCALARS
    | st.sampled_from(["awq", "gptq", "gemm", "compressed-tensors", "fp8", "re:(", "4", "a\nb"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(said=ANYTHING)
@settings(max_examples=tries(200, 5000), deadline=None)
def test_any_configuration_is_understood_or_refused_in_a_sentence(said: Any) -> None:
    _is_one_of_both(said)


@given(data=st.data())
@settings(max_examples=tries(300, 5000), deadline=None)
def test_so_is_one_with_a_changed_value(data: st.DataObject) -> None:
    said = copy.deepcopy(data.draw(st.sampled_from(SAID)))
    at: Any = said
    while True:
        key = data.draw(st.sampled_from(sorted(at)))
        inner = at[key]
        if not isinstance(inner, dict) or not inner or data.draw(st.booleans()):
            break
        at = inner
    at[key] = data.draw(ANYTHING)
    _is_one_of_both(said)


def _is_one_of_both(said: Any) -> None:
    told, found = "", None
    try:
        found = quantisation(said)
    except ModelError as error:
        told = str(error)
    assert "\n" not in told
    if not told:
        assert isinstance(found, Quantisation)
        found.scheme_of(LAYER)


TENSORS = st.sampled_from(
    [
        *("qweight", "qzeros", "scales", "g_idx", "weight", "weight_packed", "weight_scale"),
        *("weight_scale_inv", "weight_zero_point", "weight_shape", "weight_g_idx", "bias"),
    ]
)
HEADERS = st.builds(
    TensorHeader,
    st.sampled_from(["I32", "F16", "F8_E4M3", "I8", "I64", "BF16", ""]),
    st.lists(st.sampled_from([0, 1, 2, 4, 32, 64, 128, 1 << 40]), max_size=3).map(tuple),
)


@given(said=st.sampled_from(SAID), parts=st.dictionaries(TENSORS, HEADERS, max_size=6))
@settings(max_examples=tries(300, 5000), deadline=None)
def test_any_headers_are_understood_or_refused(
    said: dict[str, Any], parts: dict[str, TensorHeader]
) -> None:
    headers = {f"{LAYER}.{name}": header for name, header in parts.items()}
    with contextlib.suppress(ModelError):
        for layer in find_quantised_layers(quantisation(said), headers).values():
            assert layer.size_bytes > 0
            assert set(layer.tensors.values()) <= set(headers)


def test_modelopts_own_file_says_what_its_configuration_says(tmp_path: Path) -> None:
    inner = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": MODELOPT["ignore"]}
    told = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": inner}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    found = read_quantisation(tmp_path, {})
    assert found == quantisation(MODELOPT)
    assert found is not None and found.scheme_of("model.layers.0.mlp.gate") is None
    assert found.scheme_of("lm_head") is None and found.scheme_of(LAYER) is not None


def test_layers_of_a_mixture_of_schemes_are_told_apart_by_what_is_stored() -> None:
    layers = {name: {"quant_algo": algorithm} for name, algorithm in (("a", "FP8"), ("b", "NVFP4"))}
    said = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"quantized_layers": layers}}
    found = quantisation({"quant_method": "modelopt", **said})
    headers = {
        "a.weight": TensorHeader("F8_E4M3", (64, 64)),
        "a.weight_scale": TensorHeader("F32", ()),
        "b.weight": TensorHeader("U8", (64, 64)),
        "b.weight_scale": TensorHeader("F8_E4M3", (64, 8)),
        "b.weight_scale_2": TensorHeader("F32", ()),
        "c.weight": TensorHeader("BF16", (64, 64)),
    }
    layers_found = find_quantised_layers(found, headers)
    assert {name: layer.format for name, layer in layers_found.items()} == {
        "a.weight": "fp8/64",
        "b.weight": "fp4/128",
    }
    del headers["b.weight_scale_2"]
    with pytest.raises(ModelError, match=r"b\.weight_scale_2 is missing"):
        find_quantised_layers(found, headers)


def test_fields_that_nothing_reads_are_named() -> None:
    assert quantisation({**GPTQ, "damp_percent": 0.1, "block_name_to_quantize": "a"}).notes == ()
    (note,) = quantisation({**GPTQ, "hadamard": True, "format_version": 2}).notes
    assert note == "its quantization_config says format_version, hadamard, which llmd does not read"


def test_auto_rounds_layers_may_differ_by_name_or_pattern() -> None:
    extra = {
        "lm_head": {"bits": 8, "group_size": 32},
        r"layers\.1\..*_proj": {"bits": 8, "data_type": None},
        ".*mlp.gate.*": {"bits": 16, "data_type": "float"},
        "model.layers.1.mlp.up_proj": {"sym": False},
    }
    found = quantisation({**AUTO, "extra_config": extra})

    def seen(layer: str) -> tuple[str, int, bool] | None:
        scheme = found.scheme_of(layer)
        return (scheme.numbers, scheme.group, scheme.symmetric) if scheme else None

    assert seen(LAYER) == ("int4", 128, True)
    assert seen("lm_head") == ("int8", 32, True)
    assert seen("model.layers.1.self_attn.q_proj") == ("int8", 128, True)
    assert seen("model.layers.1.mlp.up_proj") == ("int4", 128, False)
    assert seen("model.layers.0.mlp.gate") is None
