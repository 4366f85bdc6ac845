"""How transformers resolves a model folder's configuration.

As a program, `python -m daemon.engine.loading.resolve DIR`, it prints what
`daemon.models.resolving` wants to know, or in one sentence why there is nothing to say. It hides
torch from transformers, which configurations do not need: half the time.
"""

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec

from daemon.base.logs import in_a_line
from daemon.engine.loading.rank_plans import plan_of
from daemon.engine.loading.state_shapes import keys_of_kinds, layer_states
from daemon.engine.process import stay_offline
from daemon.memory.layout import KVHeads
from daemon.models.containers import is_container, text_fields
from daemon.models.resolved import Resolved, Rope, read_shape
from daemon.models.resolving import answer
from daemon.models.shape import ModelError, ModelShape, read_json
from daemon.models.supported import refusals
from daemon.models.unread import ROPE_COMMON, ROPE_FIELDS
from daemon.models.weights import weight_headers
from daemon.wire.parent import die_with_parent

_PLAIN = (bool, int, float, str)
_UNTOLD = ("id2label", "label2id")
_TAKES_ATTENTION = "ALL_ATTENTION_FUNCTIONS.get_interface("
_COUNTS_FROM_PADDING = "create_position_ids_from_input_ids("
_ASKS_DIRECTION = "self.config.is_decoder"
"""A mark of modelling code that computes encoders or decoders, as the configuration says."""
_ASKED = re.compile(r"(?:\b(?:config|cfg|kwargs)\.|(?<=[\"']))(\w+)")
_ASKED_OF_SELF = re.compile(r"\bself\.(\w+)")
"""How code asks a configuration for a field; the configuration's own code asks itself."""
_ROPE_ABOVE = ("rope_theta", "partial_rotary_factor")
"""Fields that older files have beside the parameters of rotary positions."""
_ROPE_NAMES = ("rope_scaling", *_ROPE_ABOVE)
_RENAMED_ROPES = {"su": "longrope", "mrope": "default"}
"""Kinds of rotary positions that older files call otherwise beside the newer name."""
CAP = "attn_logit_softcapping"
"""A field that some types' code keeps and hands to no attention."""
_HEADS_OF_KEYS = ("num_key_value_heads", "head_dim")
_HEADS = (*_HEADS_OF_KEYS, "num_attention_heads", "hidden_size")


def shape_here(folder: Path) -> ModelShape:
    """A folder's shape, in a process that may load transformers. Raises ModelError."""
    return read_shape(folder, resolve_here(folder))


def resolve_here(folder: Path) -> Resolved:
    """A folder's configuration, in a process that may load transformers. Raises ModelError."""
    config = read_config(folder)
    fields, found = text_fields(read_json(folder / "config.json")), resolved_of(config)
    conflicts = tuple(_conflicts(config, fields, found))
    return msgspec.structs.replace(found, unread=_unread(config, fields), conflicts=conflicts)


def read_config(folder: Path) -> Any:
    """transformers' configuration of a folder's text model; no code of the folder is run. Raises
    ModelError.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    file = folder / "config.json"
    fields = read_json(file)
    name = fields.get("model_type")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file} does not say model_type")
    if name not in CONFIG_MAPPING:
        known = f"transformers {version('transformers')} does not know the model type {name!r}"
        raise ModelError(f"{folder}: {known}")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return _text_config(folder, config, fields) if is_container(fields) else config
    except ModelError:
        raise
    except Exception as error:  # whatever a configuration's own checks raise
        said = f"transformers does not take it for a {name}: {in_a_line(error)}"
        raise ModelError(f"{file}: {said}") from error


def _text_config(folder: Path, container: Any, fields: dict[str, Any]) -> Any:
    """The configuration of a container's text model, with what the container says for it.

    Whether it shares its embeddings with its head is said by either, and the files decide.
    """
    config = container.get_text_config(decoder=True)
    shared = any(_value(part, "tie_word_embeddings") for part in (container, config))
    for name, value in text_fields(fields).items():
        if name not in fields["text_config"]:
            setattr(config, name.removeprefix("torch_"), value)
    has_head = any(name.startswith("lm_head.") for name in weight_headers(folder))
    config.tie_word_embeddings = shared and not has_head
    config.architectures = [_causal_class(str(config.model_type))]
    return config


def resolved_of(config: Any) -> Resolved:
    """The plain values of a configuration of transformers'."""
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    name = str(config.model_type)
    causal_class = _causal_class(name)
    source = _source(type(config)) or _TAKES_ATTENTION  # unread: the worker finds out
    kinds = tuple(str(kind) for kind in _listed(_value(config, "layer_types")))
    states = layer_states(config, kinds)
    layers = _layer_heads(config)
    if states:
        layers = tuple(keys_of_kinds(layers[0], kinds))
    return Resolved(
        model_type=name,
        architectures=tuple(str(architecture) for architecture in _listed(config.architectures)),
        causal_class=causal_class,
        takes_attention=_TAKES_ATTENTION in source,
        sees_ahead=_sees_ahead(config, source),
        counts_from_padding=_COUNTS_FROM_PADDING in source,
        num_layers=_size(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=max(heads.num_kv_heads for heads in layers),
        head_dim=max(heads.head_dim for heads in layers),
        hidden_size=hidden_size,
        vocab_size=_size(config, "vocab_size"),
        context_len=_size(config, "max_position_embeddings"),
        dtype=str(_value(config, "dtype") or "float32").removeprefix("torch."),
        eos_token_ids=tuple(
            token for token in _listed(_value(config, "eos_token_id")) if isinstance(token, int)
        ),
        layer_kinds=kinds,
        window=_window(config),
        chunk=_size(config, "attention_chunk_size"),
        layer_heads=layers if len(set(layers)) > 1 or layers[0].latent else (),
        layer_states=states,
        can_share=bool(plan_of(config)),
        ropes=tuple(_ropes(config)),
        by_layer=tuple(_by_layer(config)),
        fields={
            key: _plain(value) for key, value in config.to_dict().items() if key not in _UNTOLD
        },
    )


def _unread(config: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Settings of a config.json that neither the type's configuration has a field for nor its code
    asks for; they would silently have no effect.
    """
    kind = type(config)
    declared = {*getattr(kind, "__dataclass_fields__", {}), *kind.attribute_map}
    declared |= set(signature(kind.__init__).parameters)
    own, code = (_text(name) or "" for name in (kind.__module__, _modelling(kind)))
    asked = {*_ASKED.findall(own), *_ASKED.findall(code), *_ASKED_OF_SELF.findall(own)}
    asked |= {"torch_dtype", *(_ROPE_NAMES if _ropes(config) else ())}
    turning = "partial_rotary_factor"
    if turning not in code:
        asked.discard(turning)
    if not caps_scores(kind):
        declared.discard(CAP)
        asked.discard(CAP)
    for rope in _ropes(config):
        known = asked | ROPE_COMMON | ROPE_FIELDS.get(rope.kind, frozenset(rope.parameters))
        fields = fields | {
            key if key == turning else f"rope_parameters.{key}": value
            for key, value in rope.parameters.items()
            if key not in known
        }
    return {
        key: _plain(value)
        for key, value in fields.items()
        if key not in declared and key not in asked
    }


def caps_scores(config_class: type) -> bool:
    """Whether a type's code has attention cap its scores."""
    return "softcap=" in (_text(_modelling(config_class)) or "")


def _conflicts(config: Any, fields: dict[str, Any], found: Resolved) -> Iterator[str]:
    """Settings of a config.json under two names whose values differ: one of them has no effect."""
    for name, other in (*type(config).attribute_map.items(), ("dtype", "torch_dtype")):
        value, same = fields.get(name), fields.get(other)
        if None not in (value, same) and value != same:
            yield f"{name} is {str(value)[:40]} and {other} is {str(same)[:40]}"
    nested = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(nested, dict) or not found.ropes:
        return
    for name in _ROPE_ABOVE:
        value = fields.get(name)
        if value is not None and all(rope.parameters.get(name) != value for rope in found.ropes):
            used = found.ropes[0].parameters.get(name)
            yield f"{name} is {value}, and {used} in its parameters of rotary positions"
    newer, older = (fields.get(name) for name in ("rope_parameters", "rope_scaling"))
    for parameters in (newer, older):
        yield from _two_kinds(parameters)
    if isinstance(newer, dict) and isinstance(older, dict):
        for name, value in older.items():
            other = newer.get("rope_type" if name == "type" else name, value)
            if other != value:
                yield f"rope_scaling has {name} {value}, and rope_parameters {other}"


def _two_kinds(parameters: Any) -> Iterator[str]:
    """Parameters of rotary positions whose two names of their kind differ, of each kind of layer.

    Which one counts depends on the program that reads them.
    """
    if not isinstance(parameters, dict):
        return
    older, newer = parameters.get("type"), parameters.get("rope_type")
    if None not in (older, newer) and _RENAMED_ROPES.get(str(older), older) != newer:
        said = f"type is {str(older)[:40]} and rope_type is {str(newer)[:40]}"
        yield f"{said} in its parameters of rotary positions"
    for value in parameters.values():
        yield from _two_kinds(value)


def refuse_configuration(source: Path, config: Any) -> None:
    """Raise ModelError where a model of transformers' configuration cannot be served."""
    config.architectures = [_causal_class(str(config.model_type))]
    for reason in refusals(resolved_of(config)):
        raise ModelError(f"{source}: {config.model_type} is not supported yet: {reason}")


def _value(config: Any, name: str) -> Any:
    """A field; None where there is none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' answer where layers have different values
        return None


def _size(config: Any, name: str) -> int:
    value = _value(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _layer_heads(config: Any) -> tuple[KVHeads, ...]:
    """The heads of each layer's keys and values, or their latent rows; of one alone, where nothing
    makes them differ: how many layers a file says is not checked yet.
    """
    layers, latent = [config], _size(config, "kv_lora_rank")
    if latent:
        row = KVHeads(1, latent + _size(config, "qk_rope_head_dim"), latent=latent)
        return (row,) * max(_size(config, "num_hidden_layers"), 1)
    if getattr(config, "per_layer_attributes", None):
        layers = list(config.per_layer_config)
    elif _num_sharing(config):
        layers *= _size(config, "num_hidden_layers")
    num_heads = _size(config, "num_attention_heads")
    alike = _size(config, "hidden_size") // max(num_heads, 1)
    found = [
        KVHeads(_num_kv_heads(layer) or num_heads, _size(layer, "head_dim") or alike, source)
        for layer, source in zip(layers, _sources(config, len(layers)), strict=True)
    ]
    return tuple(found)


def _sources(config: Any, num_layers: int) -> list[int]:
    """The layer whose keys and values each layer reads; -1: it has its own.

    The last layers read those of the last one of their kind before them.
    """
    num_own = num_layers - _num_sharing(config)
    kinds = [str(kind) for kind in _listed(_value(config, "layer_types"))]
    if len(kinds) != num_layers:
        kinds = [""] * num_layers
    last = {kind: layer for layer, kind in enumerate(kinds[: max(num_own, 0)])}
    return [-1 if layer < num_own else last.get(kind, -1) for layer, kind in enumerate(kinds)]


def _num_sharing(config: Any) -> int:
    """Layers without keys of their own, of a type whose code knows such."""
    name = "num_kv_shared_layers"
    return _size(config, name) if name in getattr(type(config), "__dataclass_fields__", {}) else 0


def _num_kv_heads(config: Any) -> int:
    """Heads of keys as the models' code counts them: older ones have other names, and a flag."""
    own = _size(config, "num_key_value_heads") or _size(config, "num_kv_heads")
    shared = bool(_value(config, "multi_query"))
    return 1 if shared and not _value(config, "new_decoder_architecture") else own


def _window(config: Any) -> int:
    """The narrowest window of a layer that has one."""
    kinds = set(_listed(_value(config, "layer_types")))
    window = _size(config, "sliding_window")
    if _value(config, "use_sliding_window") is False:
        return 0
    return window if not kinds or "sliding_attention" in kinds else 0


def _sees_ahead(config: Any, source: str) -> bool:
    """Whether it is an encoder, by any name of the flag; by the oldest if the code reads it."""
    encoder = _value(config, "is_decoder") is False and _ASKS_DIRECTION in source
    both_ways = _value(config, "use_bidirectional_attention") in (True, "all")
    return encoder or both_ways or _value(config, "is_causal") is False


def _ropes(config: Any) -> list[Rope]:
    """Rotary positions of all layers, or of each kind of layer that has its own."""
    parameters = _value(config, "rope_parameters") or {}
    nested = [
        value for value in parameters.values() if isinstance(value, dict) and "rope_type" in value
    ]
    return [
        Rope(str(rope.get("rope_type", "default")), {k: _plain(v) for k, v in rope.items()})
        for rope in nested or [parameters]
        if rope
    ]


def _by_layer(config: Any) -> list[str]:
    """Names of the fields that configure each layer separately, but for heads of keys."""
    listed = [name for name in _HEADS if isinstance(_value(config, name), list | tuple)]
    apart = {*(getattr(config, "per_layer_attributes", None) or ())} - {*_HEADS_OF_KEYS}
    return sorted({*listed, *apart})


def _causal_class(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_PRETRAINING_MAPPING_NAMES,
    )

    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, "")
    # Text models of containers alone may be known by how they are trained.
    trained = str(MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(model_type, ""))
    return str(found or (trained if trained.endswith("ForCausalLM") else ""))


def _source(config_class: type) -> str | None:
    """The text of a type's modelling code, since importing it would bring torch; None: none."""
    return _text(_modelling(config_class))


def _text(module: str) -> str | None:
    """The text of a module; None where there is none."""
    found = find_spec(module)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).read_text(encoding="utf-8")


def _modelling(config_class: type) -> str:
    return config_class.__module__.replace(".configuration_", ".modeling_")


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return str(value)


def main() -> int:
    """Print the answer for the folder that the command line names."""
    if len(sys.argv) != 2:
        print("usage: python -m daemon.engine.loading.resolve FOLDER", file=sys.stderr)
        return 2
    die_with_parent()
    stay_offline()
    logging.disable(logging.CRITICAL)  # stdout and stderr say one thing each
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        said = answer(resolve_here(Path(sys.argv[1]).absolute()))
    except ModelError as error:
        said = answer(None, str(error))
    sys.stdout.buffer.write(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
