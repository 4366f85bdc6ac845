"""The schemas that a JSON schema's keywords hold, each with the path that leads to it."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
Place = tuple[str, Schema]
"""A schema, and the path that leads to it."""

DEFINITIONS = ("$defs", "definitions")
PARTS = ("items", "prefixItems", "additionalProperties")
"""Keywords whose schemas describe parts of a value, like `properties`."""
BY_NAME = ("properties", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names, which are not keywords, to schemas."""
BESIDE = (
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames"),
    *("additionalItems", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose schemas describe the same value, or parts that other keywords describe, too."""


def parts_of(path: str, schema: Schema) -> Iterator[Place]:
    """The schemas that a schema's keywords hold; not those that it refers to."""
    for key, value in schema.items():
        at = f"{path}.{key}" if path else key
        if key in (*BY_NAME, *DEFINITIONS, "dependencies") and isinstance(value, dict):
            yield from ((f"{at}.{name}", part) for name, part in value.items() if _is(part))
        elif key in (*PARTS, *BESIDE):
            if isinstance(value, dict):
                yield at, value
            elif isinstance(value, list):
                parts = enumerate(value)
                yield from ((f"{at}[{index}]", part) for index, part in parts if _is(part))


def _is(value: Any) -> bool:
    return isinstance(value, dict)
