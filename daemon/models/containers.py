"""Checkpoints of a text model with towers beside it, for images and sound: the text's part.

llmd serves their text model; the towers' weights are not read.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.models.shape import read_json

_TEXT = "language_model."
_BASE = "model."
_TOWER = re.compile(
    r"(vision\w*|visual|audio\w*|image\w*|multi_modal_projector|embed_vision|embed_audio"
    r"|patch_merge\w*|mm_\w+)(\.|$)"
)
"""The first part of a tower's tensors' names, behind `model.` or not."""

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
    """The names of a folder's tensors as its text model has them; None: a tower's. Raises
    ModelError.
    """
    file = folder / "config.json"
    return _text_name if file.exists() and is_container(read_json(file)) else _as_stored


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
