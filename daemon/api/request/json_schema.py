"""JSON schemas that answers follow: decoded, limited in depth, and closed.

In JSON Schema an object may have further properties, unless `additionalProperties` forbids it.
Clients do not mean that, and a small model goes on inventing properties until it runs out of
tokens. An object is closed only where nothing else describes properties of the same object, so that
values of the closed schema exist, and fit the given one too.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec

from daemon.api.replies.errors import invalid
from daemon.api.request.schema_numbers import make_exact
from daemon.api.request.schema_refs import References, quoted
from daemon.api.request.schema_walk import BESIDE, BY_NAME, PARTS, Schema

MAX_DEPTH = 64

_BESIDE = frozenset((
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "patternProperties",
    "unevaluatedProperties", "dependentSchemas", "dependencies", "contains", "enum", "const",
))  # fmt: skip
"""Keywords that may describe the same parts of a value as `properties` or `items`."""
_SHAPING = _BESIDE | {"additionalProperties", "dependentRequired", "propertyNames", "minProperties"}
"""Keywords beside which `properties` does not describe all of an object."""


def decoded(schema: dict[str, msgspec.Raw], param: str) -> Schema:
    """A schema of a request's field `param`. Raises ApiError 400."""
    try:
        found = msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, Any])
        if not too_deep(found):
            return found
        what = f"it is nested deeper than {MAX_DEPTH}"
    except (msgspec.DecodeError, RecursionError) as error:
        what = str(error)
    raise invalid(f"`{param}` cannot be used: {what}", param)


def too_deep(value: Any) -> bool:
    """Whether JSON is nested deeper than `MAX_DEPTH`: Python could not write it everywhere."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [part for group in inner for part in group if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def followed(schema: Schema, where: str, param: str = "") -> Schema:
    """A copy that a grammar follows exactly: its objects have only the properties that they name,
    wherever that is clear, its numbers are exact, and its references have targets.

    Raises ApiError 400 where one of them cannot. `where` is the schema's path, and `param` the
    request's field that it comes from, if that is another.
    """
    copy = deepcopy(schema)
    references = References(copy, where, param or where)
    make_exact(references.places, param or where)
    for each in _alone(copy, references):
        if _says_all(each):
            each["additionalProperties"] = False
    for _path, each in references.places:
        if "$ref" in each:
            each["$ref"] = quoted(each["$ref"])
    return copy


def _says_all(schema: Schema) -> bool:
    """Whether `properties` describes all names of an object."""
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        return False
    return _SHAPING.isdisjoint(schema) and all(
        isinstance(name, str) and name in named for name in required
    )


def _alone(root: Schema, references: References) -> list[Schema]:
    """The schemas in `root` that never describe a value together with another schema."""
    seen: dict[int, tuple[Schema, bool]] = {}
    pending = [(root, True)]
    while pending:
        schema, alone = pending.pop()
        _, before = seen.get(id(schema), (schema, None))
        if before is False or before is alone:
            continue
        seen[id(schema)] = schema, alone
        pending += _below(references, schema, alone)
    return [schema for schema, alone in seen.values() if alone]


def _below(references: References, schema: Schema, alone: bool) -> Iterator[tuple[Schema, bool]]:
    """The schemas that `schema` is made of, and whether each describes its value alone."""
    for key, value in schema.items():
        if key == "$ref":
            target = references.target(schema)
            if target is not None:
                yield target, alone and _only(key, schema)
        elif key in BY_NAME and isinstance(value, dict):
            is_part = alone and key == "properties" and _BESIDE.isdisjoint(schema)
            yield from _schemas(list(value.values()), is_part)
        elif key in PARTS:
            yield from _schemas(value, alone and _BESIDE.isdisjoint(schema))
        elif key == "anyOf" or (key == "oneOf" and "discriminator" in schema):
            yield from _schemas(value, alone and _only(key, schema))
        elif key in BESIDE or key == "dependencies":
            # Two schemas that exclude each other as given might not once they are closed.
            yield from _schemas(value, False)


def _only(key: str, schema: Schema) -> bool:
    """Whether only `key` in `schema` describes the parts of its value."""
    others = (*PARTS, "properties", "required")
    return not any(other != key and (other in _SHAPING or other in others) for other in schema)


def _schemas(value: Any, alone: bool) -> Iterator[tuple[Schema, bool]]:
    """The dicts in a keyword's value, at any depth of lists."""
    if isinstance(value, dict):
        yield value, alone
    elif isinstance(value, list):
        yield from ((each, alone) for each in value if isinstance(each, dict))
