"""Parsed TOML as a `Config`, value by value: a wrong value is reported and left at its default."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from daemon.base.accepted import accepted, current_value
from daemon.config.schema import Config
from daemon.config.unknown import several_models, unknown_keys

_AT = re.compile(r" - at `\$\.?(.*)`$")
_MADE_UP: Mapping[str, Callable[[int], str]] = {
    "device": lambda _number: "cpu",
    "name": "made-up-{}".format,
    "hash": "{:064x}".format,
}
"""Valid values for missing required fields; a configuration with them is never used."""

Faults = list[tuple[str, str]]
"""For each fault the dotted key and a sentence."""


class Converted(NamedTuple):
    """A configuration, and the faults of the values that could not be read."""

    config: Config
    faults: Faults


def convert(data: Mapping[str, Any]) -> Converted:
    """The configuration of parsed TOML."""
    faults = [*several_models(data), *unknown_keys(data)]
    known = {key for key, _ in faults}
    values = {}
    for field in msgspec.structs.fields(Config):
        if field.name not in data or field.name in known:
            continue
        values[field.name], found = _section(field.name, data[field.name], field.type)
        faults += [fault for fault in found if fault[0] not in known]
    return Converted(Config(**values), faults)


def _section(name: str, value: Any, kind: Any) -> tuple[Any, Faults]:
    """A table's struct, or those of an array of tables."""
    (element, *_) = get_args(kind) or (None,)
    if element is None:
        return _struct(name, value, kind, 0)
    if not isinstance(value, list | tuple):
        return (), [(name, f"must be a list of tables, got {current_value('', value)}")]
    found = [_struct(f"{name}[{n}]", table, element, n) for n, table in enumerate(value)]
    return tuple(struct for struct, _ in found), [fault for _, wrong in found for fault in wrong]


def _struct(place: str, value: Any, kind: type[msgspec.Struct], number: int) -> tuple[Any, Faults]:
    """A struct with every field that can be read.

    Missing required fields are made up, so that later structs of a list keep their numbers.
    """
    values: dict[str, Any] = {}
    faults: Faults = []
    is_table = isinstance(value, Mapping)
    if not is_table:
        faults.append((place, f"must be a table, got {current_value('', value)}"))
        value = {}
    for field in msgspec.structs.fields(kind):
        if field.name in value:
            try:
                values[field.name] = msgspec.convert(value[field.name], field.type)
            except msgspec.ValidationError as error:
                faults.append(_fault(f"{place}.{field.name}", value[field.name], field.type, error))
        elif field.required and is_table:
            faults.append((place, f"{field.name} is missing"))
        if field.required:
            values.setdefault(field.name, _MADE_UP[field.name](number))
    return kind(**values), faults


def _fault(key: str, value: Any, kind: Any, error: msgspec.ValidationError) -> tuple[str, str]:
    """The key of what is wrong in a value, and what it must be and is."""
    found = _AT.search(str(error))
    path = found[1] if found else ""
    must = accepted(kind, path, value, of_key=False)
    return key + path, f"must be {must}, got {current_value(path, value)}"


def given_keys(data: Mapping[str, Any]) -> Iterator[str]:
    """The dotted key of every value that is given."""
    for section, values in data.items():
        if isinstance(values, dict):
            yield from (f"{section}.{key}" for key in values)
        else:
            yield section
