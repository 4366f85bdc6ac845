"""Unknown keys, each with the one that was probably meant; and requests for several models."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from daemon.config.schema import Config

ONE_MODEL = (
    "one daemon serves one model: for another one start a second daemon, with a configuration, "
    "port, control socket and share of memory of its own"
)


def unknown_keys(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every dotted key of parsed TOML that the schema does not have, and a sentence on it."""
    for name, value in data.items():
        kind = _SECTIONS.get(name)
        if kind is None:
            yield name, ONE_MODEL if name == "models" else _unknown(name, _KNOWN)
        elif isinstance(value, Mapping):
            yield from _within(name, value, kind)
        elif isinstance(value, list):
            for number, table in enumerate(value):
                if isinstance(table, Mapping):
                    yield from _within(f"{name}[{number}]", table, kind)


def several_models(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The key that asks for more than one model, if one does."""
    model = data.get("model")
    if isinstance(model, list):
        yield "model", ONE_MODEL
    elif isinstance(model, Mapping):
        for key in ("path", "name"):
            if isinstance(model.get(key), list):
                yield f"model.{key}", ONE_MODEL


def _within(
    place: str, section: Mapping[str, Any], kind: type[msgspec.Struct]
) -> Iterator[tuple[str, str]]:
    names = [field.name for field in msgspec.structs.fields(kind)]
    for name in section:
        if name not in names:
            known = [f"{place}.{field}" for field in names] + _KNOWN
            yield f"{place}.{name}", _unknown(name, known)


def _unknown(name: str, known: list[str]) -> str:
    """A sentence on an unknown key. The nearest is found by the last word: sections are often
    forgotten.
    """
    words: dict[str, str] = {}
    for key in known:
        words.setdefault(key.rpartition(".")[2], key)
    near = get_close_matches(name, words, n=1)
    return f"unknown key; did you mean {words[near[0]]}?" if near else "unknown key"


def _section_types() -> dict[str, type[msgspec.Struct]]:
    """The struct of each section, or of each element of a list of them."""
    types = {}
    for field in msgspec.structs.fields(Config):
        types[field.name] = next(iter(get_args(field.type)), field.type)
    return types


_SECTIONS = _section_types()
_KNOWN = list(_SECTIONS) + [
    f"{section}.{field.name}"
    for section, kind in _SECTIONS.items()
    for field in msgspec.structs.fields(kind)
]
