"""Parsed TOML as a `Config`, value by value: all that is wrong is told, and left at its default."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from daemon.config.schema import Config
from daemon.config.unknown import several_models, unknown_keys

_AT = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = object()


class Converted(NamedTuple):
    """What could be read, and a dotted key and a sentence for all that could not."""

    config: Config
    faults: list[tuple[str, str]]


def convert(data: Mapping[str, Any]) -> Converted:
    """The configuration of parsed TOML."""
    faults = [*several_models(data), *unknown_keys(data)]
    known = {key for key, _ in faults}
    values = {}
    for field in msgspec.structs.fields(Config):
        if field.name not in data or field.name in known:
            continue
        value, found = _section(field.name, data[field.name], field.type)
        faults += [fault for fault in found if fault[0] not in known]
        if value is not _MISSING:
            values[field.name] = value
    return Converted(Config(**values), faults)


def _section(name: str, value: Any, kind: Any) -> tuple[Any, list[tuple[str, str]]]:
    """A table's struct, or the structs of an array of tables without those that are wrong."""
    (element, *_) = get_args(kind) or (None,)
    if element is None:
        return _struct(name, value, kind)
    if not isinstance(value, list | tuple):
        return _MISSING, [(name, f"expected array, got {_type_name(value)}")]
    found, faults = [], []
    for number, one in enumerate(value):
        struct, wrong = _struct(f"{name}[{number}]", one, element)
        faults += wrong
        if struct is not _MISSING and not wrong:
            found.append(struct)
    return tuple(found), faults


def _struct(
    place: str, value: Any, kind: type[msgspec.Struct]
) -> tuple[Any, list[tuple[str, str]]]:
    """A struct with every field that can be read; `_MISSING` where one that it needs cannot."""
    if not isinstance(value, Mapping):
        return _MISSING, [(place, f"expected object, got {_type_name(value)}")]
    values, faults = {}, []
    for field in msgspec.structs.fields(kind):
        if field.name not in value:
            if field.required:
                faults.append((place, f"object missing required field {field.name}"))
            continue
        try:
            values[field.name] = msgspec.convert(value[field.name], field.type)
        except msgspec.ValidationError as error:
            faults.append(_plain(f"{place}.{field.name}", str(error)))
    needed = {field.name for field in msgspec.structs.fields(kind) if field.required}
    return (kind(**values) if needed <= set(values) else _MISSING), faults


def _plain(key: str, message: str) -> tuple[str, str]:
    """msgspec's message with the place apart: `server.cors_origins[1]`, `expected str, got int`."""
    found = _AT.search(message)
    text = _AT.sub("", message).replace("`", "")
    return key + (found[1] if found else ""), text[:1].lower() + text[1:]


def _type_name(value: Any) -> str:
    return type(value).__name__


def given_keys(data: Mapping[str, Any]) -> Iterator[str]:
    """The dotted key of every value that is given."""
    for section, values in data.items():
        if isinstance(values, dict):
            yield from (f"{section}.{key}" for key in values)
        else:
            yield section
