"""The values that a field accepts, in words, found by its path in the type of a request or file."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
"""The end of msgspec's message about a value: its place."""
_FIELD = re.compile(r"(?:missing required|unknown) field `([^`]*)`")
_MOST_SHOWN = 60
UNKNOWN: Any = object()
"""Stands for an unknown part of a body."""


@lru_cache
def _root(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def accepted(kind: type, path: str, body: Any, of_key: bool) -> str:
    """The accepted values of the field at msgspec's `path`, as the end of "must be ..."; empty
    where they are unclear. `of_key`: those of the keys of the object there.
    """
    found, value = [_root(kind)], body
    for name, index in _STEP.findall(path):
        found = [inner for outer in found for inner in _inside(outer, name or index, value)]
        value = _at(value, name or index)
    if of_key:
        found = [flat.key_type for flat in _flat(found) if isinstance(flat, inspect.DictType)]
    return _either([words for flat in _flat(found) if (words := _words(flat))])


def wrong_value(kind: type, error: msgspec.ValidationError, body: Any) -> str:
    """Which field of a file's object, read as a struct, must be what, and what it is."""
    found = _PLACE.search(str(error))
    path = found[1] if found else ""
    if named := _FIELD.search(str(error)):
        what = "is missing" if "missing" in str(error) else "is an unknown field"
        return f"{path}.{named[1]} {what}".removeprefix(".")
    if not path:
        return "it must be a JSON object"
    must, present = accepted(kind, path, body, of_key=False), current_value(path, body)
    return f"{path} must be {must}" + (f", and is {present}" if present else "")


def current_value(path: str, body: Any) -> str:
    """The value at that path of a body, as JSON, shortened; empty where it is unclear."""
    value = body
    for name, index in _STEP.findall(path):
        value = _at(value, name or index)
    if value is UNKNOWN:
        return ""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    try:
        text = msgspec.json.encode(value).decode(errors="replace")
    except (OverflowError, ValueError):
        return "a number that large"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def _at(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, UNKNOWN)
    if isinstance(value, list) and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    return UNKNOWN


def _flat(types: list[inspect.Type]) -> Iterator[inspect.Type]:
    """The types themselves, with unions taken apart and annotations without a description off."""
    for kind in types:
        if isinstance(kind, inspect.UnionType):
            yield from _flat(list(kind.types))
        elif isinstance(kind, inspect.Metadata) and not _described(kind):
            yield from _flat([kind.type])
        else:
            yield kind


def _inside(kind: inspect.Type, step: str, value: Any) -> Iterator[inspect.Type]:
    """The types that a part of a value may have."""
    for outer in _flat([kind]):
        if isinstance(outer, inspect.StructType):
            tag_field = outer.tag_field
            tag = value.get(tag_field) if isinstance(value, dict) and tag_field else None
            if step == tag_field:
                yield inspect.LiteralType((outer.tag,))
            elif tag in (None, outer.tag):
                yield from (field.type for field in outer.fields if field.encode_name == step)
        elif isinstance(outer, inspect.ListType | inspect.VarTupleType):
            yield outer.item_type
        elif isinstance(outer, inspect.DictType):
            yield outer.value_type


def _described(kind: inspect.Metadata) -> bool:
    return bool(kind.extra_json_schema and "description" in kind.extra_json_schema)


def _words(kind: inspect.Type) -> str:
    """A type in words; empty for null, which every field may be."""
    match kind:
        case inspect.Metadata(extra_json_schema=dict(described)):
            return str(described["description"])
        case inspect.IntType():
            return f"a whole number{_range(kind.ge, None, kind.le)}"
        case inspect.FloatType():
            return f"a number{_range(kind.ge, kind.gt, kind.le)}"
        case inspect.StrType():
            return f"a string{_length(kind.min_length, kind.max_length, 'letter')}"
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list{_length(kind.min_length, kind.max_length, 'entry')}"
        case inspect.DictType():
            return f"an object{_length(kind.min_length, kind.max_length, 'entry')}"
        case inspect.StructType():
            return "an object"
        case inspect.LiteralType():
            return _either([repr(value) for value in kind.values])
    return ""


def _range(least: float | None, above: float | None, most: float | None) -> str:
    low = f" of at least {least:g}" if least is not None else ""
    if above is not None:
        low = f" above {above:g}"
    if most is None:
        return low
    if least is not None:
        return f" from {_shown(least)} to {_shown(most)}"
    return f"{low}{' and' if low else ' of'} at most {_shown(most)}"


def _shown(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _length(least: int | None, most: int | None, unit: str) -> str:
    units = {"entry": "entries"}.get(unit, f"{unit}s")
    if most is None:
        return f" of at least {least} {unit if least == 1 else units}" if least else ""
    low = f"{least} to" if least else "at most"
    return f" of {low} {most} {units}"


def _either(words: list[str]) -> str:
    """`a, b or c`, each once."""
    *first, last = list(dict.fromkeys(words)) or [""]
    return f"{', '.join(first)} or {last}" if first else last
