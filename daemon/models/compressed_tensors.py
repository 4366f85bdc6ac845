"""The configuration of compressed-tensors checkpoints, to the schemes of their layers."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from daemon.models.formats import FP4_GROUP
from daemon.models.schemes import (
    KV_NOTE,
    Layout,
    Numbers,
    Quantisation,
    Scheme,
    Target,
    is_pattern,
)
from daemon.models.shape import ModelError

_NVFP4 = "nvfp4-pack-quantized"
_LAYOUTS: dict[str, Layout] = {
    "pack-quantized": "packed",
    _NVFP4: "packed",
    "int-quantized": "plain",
    "float-quantized": "plain",
    "naive-quantized": "plain",
}
_EACH_ITS_OWN = "mixed-precision"
_NUMBERS: dict[str, Numbers] = {"int4": "int4", "int8": "int8", "float8": "fp8", "float4": "fp4"}


class _Args(msgspec.Struct, forbid_unknown_fields=True):
    """How some numbers are quantised."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    block_structure: list[int] | str | None = None
    dynamic: bool | str = False
    actorder: str | bool | None = None
    scale_dtype: str | None = None
    zp_dtype: str | None = None
    observer: str | None = None
    observer_kwargs: dict[str, Any] | None = None


class _Group(msgspec.Struct, forbid_unknown_fields=True):
    """How some layers are."""

    targets: list[str]
    weights: _Args | None = None
    input_activations: _Args | None = None
    output_activations: _Args | None = None
    format: str | None = None


class CompressedTensors(msgspec.Struct):
    """The fields of a configuration that are read."""

    config_groups: dict[str, _Group]
    format: str
    quantization_status: str = "compressed"
    ignore: list[str] | None = None
    kv_cache_scheme: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None
    moe_sparsity_config: dict[str, Any] | None = None


def read_compressed_tensors(config: CompressedTensors) -> Quantisation:
    """The schemes that a configuration names. Raises ModelError, a sentence without a folder."""
    for reason in _refusals(config):
        raise ModelError(f"its weights are compressed tensors {reason}")
    ignored = tuple(config.ignore or ())
    targets = tuple(
        Target(tuple(group.targets), _scheme(group, group.format or config.format))
        for group in config.config_groups.values()
        if group.weights is not None
    )
    for name in (*ignored, *(layer for target in targets for layer in target.layers)):
        _check_pattern(name)
    return Quantisation(
        method="compressed-tensors",
        targets=targets,
        ignored=ignored,
        notes=(KV_NOTE,) if config.kv_cache_scheme else (),
    )


def _refusals(config: CompressedTensors) -> Iterator[str]:
    formats = {group.format or config.format for group in config.config_groups.values()}
    for form in sorted(formats - set(_LAYOUTS)):
        yield f"in the format {form}, not in {', '.join(_LAYOUTS)}"
    if config.format not in (*_LAYOUTS, _EACH_ITS_OWN):
        yield f"in the format {config.format}, not in {', '.join(_LAYOUTS)}"
    if config.quantization_status != "compressed":
        yield f"whose status is {config.quantization_status}, not compressed"
    sparse = (config.sparsity_config or {}).get("format", "dense")
    if sparse != "dense":
        yield f"and sparse ({sparse})"
    if config.transform_config and config.transform_config.get("config_groups", True):
        yield "whose layers transform their states (transform_config)"
    if not any(group.weights for group in config.config_groups.values()):
        yield "without a group whose weights are quantized"


def _scheme(group: _Group, form: str) -> Scheme:
    args = group.weights or _Args()
    layout = _LAYOUTS[form]
    kind = f"{args.type.lower()}{args.num_bits}"
    known = ["int4", "int8"] if layout == "packed" else ["int8", "float8"]
    if form == _NVFP4:
        known = ["float4"]
    if kind not in known or (kind == "float4" and not args.symmetric):
        raise ModelError(
            f"its weights are of {kind} in the format {form}, and llmd reads {' and '.join(known)}"
        )
    columns, rows = _shared(args, kind)
    return Scheme(
        layout=layout,
        numbers=_NUMBERS[kind],
        group=columns,
        group_rows=rows,
        symmetric=args.symmetric,
        act_order=args.actorder is True or args.actorder in ("group", "dynamic"),
        rounds_states=group.input_activations is not None,
    )


def _shared(args: _Args, kind: str) -> tuple[int, int]:
    """Columns and rows that share a scale, as `Scheme` has them."""
    strategy = (args.strategy or _usual_strategy(args.group_size)).lower()
    size = args.group_size
    if kind == "float4":
        if strategy == "tensor_group" and size == FP4_GROUP:
            return FP4_GROUP, 1
    elif strategy in ("tensor", "channel"):
        return 0, int(strategy == "channel")
    elif strategy == "group" and size is not None and size > 0:
        return size, 1
    elif strategy == "block":
        return _block(args.block_structure)
    by = strategy if size is None else f"{strategy} of {size}"
    raise ModelError(f"its weights have scales by {by}, which llmd does not know")


def _usual_strategy(group_size: int | None) -> str:
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"


def _block(said: list[int] | str | None) -> tuple[int, int]:
    sides = said
    if isinstance(said, str):
        parts = said.split("x")
        sides = [int(part) for part in parts if re.fullmatch("[0-9]{1,9}", part)]
    if not isinstance(sides, list) or len(sides) != 2 or min(sides) < 1:
        raise ModelError(f"its weights have scales by block, and {said!r} is no block")
    return sides[1], sides[0]


def _check_pattern(name: str) -> None:
    if not is_pattern(name):
        return
    try:
        re.compile(name.removeprefix("re:"))
    except (re.error, OverflowError, RecursionError) as error:
        said = f"names layers by {name!r}, which is no pattern: {error}"
        raise ModelError(f"its quantization_config {said}") from None
