"""The quantisation of a folder's weights.

It is AWQ, GPTQ, AutoRound, compressed tensors, ModelOpt, FP8 or MXFP4. All else is refused by its
name, before anything is loaded. Scales for keys and values, where there are some, are left aside
with a note: how a cache holds them is configured, and llmd computes its own scales. Where a method
also rounds states (W8A8, FP8), states stay as wide as they are computed: products are those of the
stored weights with whole states.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from daemon.base.accepted import wrong_value
from daemon.models.auto_round import AutoRound, read_auto_round
from daemon.models.compressed_tensors import CompressedTensors, read_compressed_tensors
from daemon.models.modelopt import ModelOpt, of_own_file, read_modelopt
from daemon.models.schemes import KV_NOTE, Quantisation, Scheme, Target
from daemon.models.shape import ModelError, read_json

_KEY = "quantization_config"
_BESIDE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "quant_config.json": lambda said: {"quant_method": "awq", **said},
    "quantize_config.json": lambda said: {"quant_method": "gptq", **said},
    "hf_quant_config.json": of_own_file,
}
"""Files that tools write beside config.json, and their fields as it has them; older tools write
nothing into it."""
_OF_TOOLS = frozenset({
    *("quant_method", "quant_library", "producer", "version", "meta", "global_compression_ratio"),
    *("damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse", "uri"),
    *("dataset", "tokenizer", "batch_size", "model_seqlen", "quantizer", "lm_head", "pad_token_id"),
    *("model_name_or_path", "model_file_base_name", "block_name_to_quantize"),
    *("cache_block_outputs", "scale_fmt", "dequantize", "autoround_version", "iters", "lr", "amp"),
    *("minmax_lr", "nsamples", "seqlen", "enable_minmax_tuning", "enable_quanted_input"),
    *("low_gpu_mem_usage", "scale_dtype", "enable_norm_bias_tuning", "gradient_accumulate_steps"),
    *("quant_block_list", "act_group_size", "act_sym", "act_data_type", "act_dynamic"),
    *("super_group_size", "enable_alg_ext"),
    *("module_name_preceding_first_block", "modules_in_block_to_quantize", "inside_layer_modules"),
    *("use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "max_input_length"),
    *("do_fuse", "modules_to_fuse", "fuse_max_seq_len", "activation_scheme", "activation_scale_ub"),
})  # fmt: skip
"""Fields of how a tool found the numbers, and of how other programs compute with them."""
_ALL = ("Linear", "Embedding")
_E4M3 = ("e4m3", "float8_e4m3fn")


class _Words(msgspec.Struct):
    """Fields that AWQ's and GPTQ's tools share."""

    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str = "int32"
    dynamic: dict[str, Any] | None = None
    adapter: Any = None
    rotation: Any = None
    activation: Any = None
    modules_to_not_convert: list[str] | None = None


class _Awq(_Words):
    bits: int = 0
    w_bit: int = 0
    group_size: int | None = None
    q_group_size: int | None = None
    zero_point: bool = True
    version: str | None = None
    backend: str | None = None


class _Gptq(_Words, kw_only=True):
    bits: int
    group_size: int = 128
    desc_act: bool = False
    sym: bool = True
    is_marlin_format: bool = False


class _Fp8(msgspec.Struct):
    weight_block_size: tuple[int, int] | None = None
    expert_dtype: str | None = None
    fmt: str = "e4m3"
    kv_cache_scheme: Any = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


class _Mxfp4(msgspec.Struct):
    modules_to_not_convert: list[str] | None = None


def read_quantisation(folder: Path, fields: Mapping[str, Any]) -> Quantisation | None:
    """How the weights in a folder are quantised; None: they are not. `fields` is its configuration.

    Raises ModelError, naming the folder.
    """
    try:
        if (said := fields.get(_KEY)) is not None:
            return quantisation(said)
        for name, fields_of in _BESIDE.items():
            if (folder / name).exists():
                return quantisation(fields_of(read_json(folder / name)))
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None
    return None


def quantisation(said: Any) -> Quantisation:
    """Read a `quantization_config`. Raises ModelError, a sentence without a folder."""
    try:
        return _read(said)
    except ModelError as error:  # in one line, whatever the names in the file are
        raise ModelError(" ".join(str(error).split())) from None


def _read(said: Any) -> Quantisation:
    if not isinstance(said, dict):
        raise ModelError(f"its {_KEY} is no JSON object")
    method = said.get("quant_method")
    kind, read = _METHODS.get(method, (None, None)) if isinstance(method, str) else (None, None)
    if kind is None or read is None:
        name = method if isinstance(method, str) else "a method without a name"
        known = ", ".join(_METHODS)
        raise ModelError(f"its weights are quantized by {name}, and llmd reads {known}")
    try:
        found = read(msgspec.convert(said, kind))
    except msgspec.ValidationError as error:
        wrong = wrong_value(kind, error, said)
        raise ModelError(f"its {_KEY} for {method} is not understood: {wrong}") from None
    read_here = {field.encode_name for field in msgspec.structs.fields(kind)}
    if unread := sorted(map(str, said.keys() - read_here - _OF_TOOLS)):
        note = f"its {_KEY} says {', '.join(unread)}, which llmd does not read"
        found = msgspec.structs.replace(found, notes=(*found.notes, note))
    return found


def _read_awq(config: _Awq) -> Quantisation:
    layout = (config.version or config.checkpoint_format or config.format or "gemm").lower()
    bits = config.bits or config.w_bit or 4
    if layout != "gemm" or config.backend == "llm-awq":
        other = config.backend if layout == "gemm" else layout
        raise ModelError(f"its weights are quantized by AWQ in the layout {other}, not gemm")
    if bits != 4:
        raise ModelError(f"its weights are quantized by AWQ to {bits} bits, not to 4")
    _check_words("AWQ", config)
    size = config.q_group_size if config.group_size is None else config.group_size
    scheme = Scheme(
        layout="awq",
        numbers="int4",
        group=_group("AWQ", 128 if size is None else size),
        symmetric=not config.zero_point,
        rounds_states=bool(config.activation),
    )
    return _whole("awq", scheme, config.modules_to_not_convert)


def _read_gptq(config: _Gptq) -> Quantisation:
    layout = (config.checkpoint_format or config.format or "gptq").lower()
    if config.is_marlin_format:
        layout = "marlin"
    begun = "its weights are quantized by GPTQ"
    if layout not in ("gptq", "gptq_v2"):
        raise ModelError(f"{begun} in the layout {layout}, not gptq or gptq_v2")
    if config.bits not in (4, 8):
        raise ModelError(f"{begun} to {config.bits} bits, not to 4 or 8")
    _check_words("GPTQ", config)
    scheme = Scheme(
        layout="gptq",
        numbers="int4" if config.bits == 4 else "int8",
        group=_group("GPTQ", config.group_size),
        symmetric=config.sym,
        act_order=config.desc_act,
        lowered_zeros=layout == "gptq",
        rounds_states=bool(config.activation),
    )
    return _whole("gptq", scheme, config.modules_to_not_convert)


def _check_words(method: str, config: _Words) -> None:
    begun = f"its weights are quantized by {method}"
    if config.pack_dtype not in ("int32", "torch.int32"):
        raise ModelError(f"{begun} and packed into {config.pack_dtype}, not into int32")
    if config.adapter or config.rotation:
        raise ModelError(f"{begun} with an adapter or a rotation, which llmd does not apply")
    if config.dynamic and not all(name.startswith("-:") for name in config.dynamic):
        raise ModelError(f"{begun} in another way for some layers (dynamic)")


def _read_fp8(config: _Fp8) -> Quantisation:
    if config.expert_dtype not in (None, "fp8") or config.fmt not in _E4M3:
        other = config.expert_dtype if config.fmt in _E4M3 else config.fmt
        raise ModelError(f"its weights are stored as {other}, not as FP8 of e4m3")
    rows, columns = config.weight_block_size or (0, 0)
    if config.weight_block_size and min(rows, columns) < 1:
        raise ModelError(f"its FP8 scales are for blocks of {rows}x{columns}")
    scheme = Scheme(
        layout="plain", numbers="fp8", group=columns, group_rows=rows, rounds_states=True
    )
    ignored = (config.modules_to_not_convert or []) + (config.ignored_layers or [])
    notes = (KV_NOTE,) if config.kv_cache_scheme else ()
    return _whole("fp8", scheme, ignored, notes)


def _read_fbgemm(config: _Fp8) -> Quantisation:
    scheme = Scheme(layout="plain", numbers="fp8", rounds_states=True)
    return _whole("fbgemm_fp8", scheme, config.modules_to_not_convert)


def _read_mxfp4(config: _Mxfp4) -> Quantisation:
    scheme = Scheme(layout="experts", numbers="mxfp4", group=32)
    return _whole("mxfp4", scheme, config.modules_to_not_convert)


def _group(method: str, said: int) -> int:
    if said != -1 and said < 1:
        raise ModelError(f"its weights are quantized by {method} in groups of {said}")
    return max(said, 0)


def _whole(
    method: str, scheme: Scheme, ignored: list[str] | None, notes: tuple[str, ...] = ()
) -> Quantisation:
    """One scheme for all layers but some."""
    return Quantisation(
        method=method,
        targets=(Target(_ALL, scheme),),
        ignored=tuple(ignored or ()),
        parts=True,
        notes=notes,
    )


_METHODS: dict[str, tuple[type, Callable[[Any], Quantisation]]] = {
    "awq": (_Awq, _read_awq),
    "gptq": (_Gptq, _read_gptq),
    "compressed-tensors": (CompressedTensors, read_compressed_tensors),
    "fp8": (_Fp8, _read_fp8),
    "fbgemm_fp8": (_Fp8, _read_fbgemm),
    "mxfp4": (_Mxfp4, _read_mxfp4),
    "auto-round": (AutoRound, read_auto_round),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed"), (ModelOpt, read_modelopt)),
}
"""By `quant_method`: the fields that are read, and what they mean."""
