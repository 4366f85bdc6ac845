"""Checkpoints of a text model with parts beside it.

The parts are towers for images and sound, and layers that predict several tokens at once. llmd
serves the text model; the weights of these parts are not read.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from daemon.models.shape import ModelError, read_json

_TEXT = "language_model."
_BASE = "model."
_TOWER = re.compile(
    r"(vision\w*|visual|audio\w*|image\w*|multi_modal_projector|embed_vision|embed_audio"
    r"|patch_merge\w*|mm_\w+)(\.|$)"
)
"""The first part of a tower's tensors' names, behind `model.` or not."""

_PREDICTING = re.compile(r"(^|\.)(mtp\w*|nextn\w*)(\.|$)")
"""A part of the names of tensors that predict further tokens; others have the number of a layer
behind the model's last."""
_LAYER = re.compile(r"(^|\.)layers\.(\d+)\.")
_PREDICTING_MARKS = ("eh_proj", "enorm", "hnorm")
"""Modules of such a layer that no other has."""

_ABOVE = ("quantization_config", "dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings")
"""Fields that a container may say for its text model."""


def text_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config.json for its text model: all, unless it has a `text_config`."""
    own = fields.get("text_config")
    if not isinstance(own, dict):
        return fields
    return {name: fields[name] for name in _ABOVE if fields.get(name) is not None} | own


def is_container(fields: dict[str, Any]) -> bool:
    """Whether a config.json is of a text model with towers beside it."""
    return isinstance(fields.get("text_config"), dict)


def text_names(folder: Path) -> Callable[[str], str | None]:
    """The names of a folder's tensors as its text model has them; None: of a part beside it. Raises
    ModelError.
    """
    file = folder / "config.json"
    fields = read_json(file) if file.exists() else {}
    plain = _text_name if is_container(fields) else _as_stored
    behind = _layers_behind(fields)

    def name_of(stored: str) -> str | None:
        return None if _is_predicting(stored, behind) else plain(stored)

    return name_of


def predicting(folder: Path, stored: Iterable[str]) -> list[str]:
    """The names, of those that a folder has `stored`, of tensors that predict further tokens.

    Raises ModelError where a layer that should predict has none of the modules for it: it may be
    the model's own.
    """
    behind = _layers_behind(read_json(folder / "config.json"))
    found = [name for name in stored if _is_predicting(name, behind)]
    marked = {_layer_of(name) for name in found if any(it in name for it in _PREDICTING_MARKS)}
    if unmarked := {_layer_of(name) for name in found} - marked - {-1}:
        said = f"layer {min(unmarked)} of the weights is behind those of config.json"
        raise ModelError(f"{folder}: {said}, and does not predict further tokens")
    return found


def _layers_behind(fields: dict[str, Any]) -> range:
    """The numbers of layers that predict further tokens, as the configuration says it."""
    own = text_fields(fields)
    count = own.get("num_nextn_predict_layers", own.get("num_mtp_layers"))
    first = own.get("num_hidden_layers")
    if not isinstance(first, int) or not isinstance(count, int):
        return range(0)
    return range(first, first + count)


def _layer_of(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1: none, or one by another name."""
    found = _LAYER.search(name)
    return -1 if found is None or _PREDICTING.search(name) else int(found[2])


def _is_predicting(name: str, behind: range) -> bool:
    return bool(_PREDICTING.search(name)) or _layer_of(name) in behind


def _as_stored(name: str) -> str | None:
    return name


def _text_name(name: str) -> str | None:
    inner = name.removeprefix(_BASE)
    if _TOWER.match(inner):
        return None
    if not inner.startswith(_TEXT):
        return name
    own = inner.removeprefix(_TEXT)
    # Older files wrap the whole causal model, newer ones its base.
    return own if own.startswith((_BASE, "lm_head.")) else _BASE + own
