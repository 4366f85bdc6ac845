"""The configuration of AutoRound's checkpoints, to the schemes of their layers.

Its layers have the tensors of GPTQ's or AWQ's. `extra_config` says of layers, by name or by
pattern, in what they differ from all others.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from daemon.models.schemes import Quantisation, Scheme, Target
from daemon.models.shape import ModelError

_PREFIX = "auto_round"
_LAYOUTS: dict[str, dict[str, Any]] = {
    "": {"layout": "gptq"},
    "gptqmodel": {"layout": "gptq"},
    "auto_gptq": {"layout": "gptq", "lowered_zeros": True},
    "gptq": {"layout": "gptq", "lowered_zeros": True},
    "auto_awq": {"layout": "awq"},
    "awq": {"layout": "awq"},
}
"""By what follows `auto_round:` in the packing format; GPTQ's first layout lowers zero points."""
_PLAIN_BITS = 16
_BEGUN = "its weights are quantized by AutoRound"
_NAME = re.compile(r"[\w.-]+")


class _Layer(msgspec.Struct, forbid_unknown_fields=True):
    """How a layer is quantised; None: as the others."""

    bits: int | None = None
    group_size: int | None = None
    sym: bool | None = None
    data_type: str | None = None
    act_bits: int | None = None
    act_group_size: int | None = None
    act_sym: bool | None = None
    act_data_type: str | None = None
    act_dynamic: bool | None = None
    super_bits: int | None = None
    super_group_size: int | None = None
    scale_dtype: str | None = None


class AutoRound(msgspec.Struct):
    """The fields of a configuration that are read."""

    bits: int
    group_size: int = 128
    sym: bool = True
    data_type: str = "int"
    packing_format: str | None = None
    backend: str | None = None
    act_bits: int | None = None
    super_bits: int | None = None
    rotation_config: Any = None
    extra_config: dict[str, _Layer] | None = None
    modules_to_not_convert: list[str] | None = None


def read_auto_round(config: AutoRound) -> Quantisation:
    """The schemes that a configuration names. Raises ModelError, a sentence without a folder."""
    said = (config.packing_format or config.backend or f"{_PREFIX}:gptq").lower()
    prefix, _, kind = said.partition(":")
    if prefix != _PREFIX or kind not in _LAYOUTS:
        known = ", ".join(f"{_PREFIX}:{name}" if name else _PREFIX for name in _LAYOUTS)
        raise ModelError(f"{_BEGUN} in the packing format {said}, not in one of {known}")
    if config.rotation_config:
        raise ModelError(f"{_BEGUN} with a rotation, which llmd does not apply")
    usual = _Layer(
        config.bits, config.group_size, config.sym, config.data_type, config.act_bits,
        super_bits=config.super_bits,
    )  # fmt: skip
    layers = {
        name: _merged(usual, layer) for name, layer in _patterns(config.extra_config or {}).items()
    }
    plain = tuple(name for name, layer in layers.items() if layer.bits == _PLAIN_BITS)
    own = (
        Target((name,), _scheme(layer, _LAYOUTS[kind]))
        for name, layer in layers.items()
        if name not in plain
    )
    return Quantisation(
        method="auto-round",
        targets=(*own, Target(("Linear", "Embedding"), _scheme(usual, _LAYOUTS[kind]))),
        ignored=(*plain, *(config.modules_to_not_convert or ())),
        parts=True,
    )


def _patterns(layers: Mapping[str, _Layer]) -> dict[str, _Layer]:
    """Layers by name first, then by pattern, which AutoRound looks for anywhere in a name."""
    named = {name: layer for name, layer in layers.items() if _NAME.fullmatch(name)}
    return named | {
        f"re:.*(?:{_checked(name)})": layer for name, layer in layers.items() if name not in named
    }


def _checked(name: str) -> str:
    try:
        re.compile(name)
    except (re.error, OverflowError, RecursionError) as error:
        said = f"extra_config names layers by {name!r}, which is no pattern: {error}"
        raise ModelError(f"its {said}") from None
    return name


def _merged(usual: _Layer, layer: _Layer) -> _Layer:
    own = {
        name: value for name, value in msgspec.structs.asdict(layer).items() if value is not None
    }
    return msgspec.structs.replace(usual, **own)


def _scheme(layer: _Layer, layout: Mapping[str, Any]) -> Scheme:
    for reason in _refusals(layer, layout["layout"] == "awq"):
        raise ModelError(f"{_BEGUN} {reason}")
    size = layer.group_size or 0
    return Scheme(
        **layout,
        numbers="int4" if layer.bits == 4 else "int8",
        group=max(size, 0),
        symmetric=bool(layer.sym),
        rounds_states=(layer.act_bits or _PLAIN_BITS) < _PLAIN_BITS,
    )


def _refusals(layer: _Layer, in_awq: bool) -> Iterator[str]:
    if layer.data_type != "int":
        yield f"to numbers of the type {layer.data_type}, not int"
    known = (4,) if in_awq else (4, 8)
    if layer.bits not in known:
        yield f"to {layer.bits} bits, not to {' or '.join(map(str, known))}"
    if layer.super_bits:
        yield "with scales that are quantized too"
    if layer.group_size is None or (layer.group_size != -1 and layer.group_size < 1):
        yield f"in groups of {layer.group_size}"
