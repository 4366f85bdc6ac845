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
"""Keywords whose value holds schemas by names, which are no keywords."""
BESIDE = (
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contains", "propertyNames"),
    *("additionalItems", "unevaluatedItems", "unevaluatedProperties"),
)
"""Keywords whose schemas say more of the same value, or of parts that others describe, too."""


def parts_of(path: str, schema: Schema) -> Iterator[Place]:
    """The schemas that a schema's keywords hold; not those that it refers to."""
    for key, value in schema.items():
        at = f"{path}.{key}" if path else key
        if key in (*BY_NAME, *DEFINITIONS, "dependencies") and isinstance(value, dict):
            yield from ((f"{at}.{name}", one) for name, one in value.items() if _is(one))
        elif key in (*PARTS, *BESIDE):
            if isinstance(value, dict):
                yield at, value
            elif isinstance(value, list):
                yield from ((f"{at}[{index}]", one) for index, one in enumerate(value) if _is(one))


def _is(value: Any) -> bool:
    return isinstance(value, dict)
