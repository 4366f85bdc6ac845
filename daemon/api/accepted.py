"""What a field takes, in words: found by its path in the type of a request."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MOST_SHOWN = 60
UNTOLD: Any = object()
"""Stands for what is not known of a body."""


@lru_cache
def _root(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def accepted(kind: type, path: str, body: Any, of_key: bool) -> str:
    """What the field at msgspec's `path` of a request may be, as the end of "must be ..."; empty
    where that cannot be told. `of_key`: what the keys of that object may be.
    """
    found, value = [_root(kind)], body
    for name, index in _STEP.findall(path):
        found = [inner for one in found for inner in _inside(one, name or index, value)]
        value = _at(value, name or index)
    if of_key:
        found = [one.key_type for one in _flat(found) if isinstance(one, inspect.DictType)]
    return _either([words for one in _flat(found) if (words := _words(one))])


def came(path: str, body: Any) -> str:
    """What stands at that path of a body, as JSON, shortened; empty where that is not clear."""
    value = body
    for name, index in _STEP.findall(path):
        value = _at(value, name or index)
    if value is UNTOLD:
        return ""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    try:
        said = msgspec.json.encode(value).decode(errors="replace")
    except (OverflowError, ValueError):
        return "a number that large"
    return said if len(said) <= _MOST_SHOWN else f"{said[:_MOST_SHOWN]} ..."


def _at(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, UNTOLD)
    if isinstance(value, list) and step.isdigit() and int(step) < len(value):
        return value[int(step)]
    return UNTOLD


def _flat(types: list[inspect.Type]) -> Iterator[inspect.Type]:
    """The types of unions, and below what is only annotated."""
    for one in types:
        if isinstance(one, inspect.UnionType):
            yield from _flat(list(one.types))
        elif isinstance(one, inspect.Metadata) and not _described(one):
            yield from _flat([one.type])
        else:
            yield one


def _inside(kind: inspect.Type, step: str, value: Any) -> Iterator[inspect.Type]:
    """The types that a part of a value may have."""
    for one in _flat([kind]):
        if isinstance(one, inspect.StructType):
            tag = value.get(one.tag_field) if isinstance(value, dict) and one.tag_field else None
            if step == one.tag_field:
                yield inspect.LiteralType((one.tag,))
            elif tag in (None, one.tag):
                yield from (field.type for field in one.fields if field.encode_name == step)
        elif isinstance(one, inspect.ListType):
            yield one.item_type
        elif isinstance(one, inspect.DictType):
            yield one.value_type


def _described(one: inspect.Metadata) -> bool:
    return bool(one.extra_json_schema and "description" in one.extra_json_schema)


def _words(kind: inspect.Type) -> str:
    """One type; nothing for null, which every field may be, or for a Struct's own name."""
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
        case inspect.ListType():
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
