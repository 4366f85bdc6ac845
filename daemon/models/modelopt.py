"""The configuration of ModelOpt's checkpoints, in NVFP4 and FP8, to the schemes of their layers.

It lies in config.json, or in a file of its own (`hf_quant_config.json`) with other names for some
fields. Where layers differ (`MIXED_PRECISION`), what is stored tells them apart.
"""

import fnmatch
from collections.abc import Iterator
from typing import Any

import msgspec

from daemon.models.formats import FP4_GROUP
from daemon.models.schemes import KV_NOTE, Quantisation, Scheme, Target
from daemon.models.shape import ModelError

_MIXED = "MIXED_PRECISION"
_NVFP4 = Scheme(layout="plain", numbers="fp4", group=FP4_GROUP)
_SCHEMES = {
    "NVFP4": msgspec.structs.replace(_NVFP4, rounds_states=True),
    "W4A16_NVFP4": _NVFP4,
    "FP8": Scheme(layout="plain", numbers="fp8", group_rows=0, rounds_states=True),
}
_BITS = {"fp4": 4, "fp8": 8}


class _Layer(msgspec.Struct):
    """How a layer is quantised, of several that differ."""

    quant_algo: str
    group_size: int = FP4_GROUP


class _Numbers(msgspec.Struct):
    """How some numbers are quantised."""

    num_bits: int
    type: str = "float"
    group_size: int = FP4_GROUP


class _Group(msgspec.Struct):
    """How some layers are."""

    weights: _Numbers | None = None
    input_activations: _Numbers | None = None
    targets: list[str] | None = None


class ModelOpt(msgspec.Struct):
    """The fields of a configuration that are read."""

    quant_algo: str
    group_size: int = FP4_GROUP
    ignore: list[str] | None = None
    exclude_modules: list[str] | None = None
    kv_cache_scheme: Any = None
    kv_cache_quant_algo: str | None = None
    kv_cache_quantized_layers: Any = None
    config_groups: dict[str, _Group] | None = None
    quantized_layers: dict[str, Any] | None = None


def of_own_file(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of `hf_quant_config.json` as config.json has them."""
    inner = said.get("quantization")
    return {"quant_method": "modelopt", **(inner if isinstance(inner, dict) else said)}


def read_modelopt(config: ModelOpt) -> Quantisation:
    """The schemes that a configuration names. Raises ModelError, a sentence without a folder."""
    algorithms = list(dict.fromkeys(_algorithms(config)))
    for name in algorithms:
        if name not in _SCHEMES:
            said = f"quantized by ModelOpt to {name}, and llmd reads {', '.join(_SCHEMES)}"
            raise ModelError(f"its weights are {said}")
    schemes = [_SCHEMES[name] for name in algorithms]
    if not schemes:
        raise ModelError(f"its weights are quantized by ModelOpt to {_MIXED}, of no layers")
    known = {_BITS[scheme.numbers] for scheme in schemes}
    for group in (config.config_groups or {}).values():
        if group.weights and (group.weights.num_bits not in known or group.weights.type != "float"):
            numbers = f"{group.weights.type}{group.weights.num_bits}"
            raise ModelError(f"its config_groups have {numbers}, and quant_algo says otherwise")
    by_cache = (
        config.kv_cache_scheme or config.kv_cache_quant_algo or config.kv_cache_quantized_layers
    )
    return Quantisation(
        method="modelopt",
        targets=tuple(Target(("Linear", "Embedding"), scheme) for scheme in schemes),
        ignored=tuple(map(_pattern, (config.ignore or []) + (config.exclude_modules or []))),
        parts=True,
        notes=(KV_NOTE,) if by_cache else (),
    )


def _algorithms(config: ModelOpt) -> Iterator[str]:
    """The algorithms of all layers, or of each that is listed."""
    if config.quant_algo != _MIXED:
        _check_group(config.group_size)
        yield config.quant_algo
        return
    layers = config.quantized_layers or {}
    inner = layers.get("quantized_layers")  # as some versions write it
    named = inner if isinstance(inner, dict) else layers
    for layer in msgspec.convert(named, dict[str, _Layer]).values():
        if layer.quant_algo.endswith("NVFP4"):
            _check_group(layer.group_size)
        yield layer.quant_algo
    for group in (config.config_groups or {}).values() if not named else ():
        if group.weights:
            size = group.weights.num_bits
            states = group.input_activations
            yield {(4, True): "NVFP4", (4, False): "W4A16_NVFP4", (8, True): "FP8"}.get(
                (size, states is not None), f"{size} bits"
            )


def _check_group(size: int) -> None:
    if size != FP4_GROUP:
        said = f"in groups of {size}, not of {FP4_GROUP}"
        raise ModelError(f"its weights are quantized by ModelOpt {said}")


def _pattern(name: str) -> str:
    """A layer's name, or a pattern of the names that it stands for."""
    return f"re:{fnmatch.translate(name)}" if "*" in name or "?" in name else name
