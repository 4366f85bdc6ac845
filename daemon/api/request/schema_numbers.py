"""The numbers in a JSON schema: those that a grammar would not follow exactly are refused.

A grammar's bounds are 64-bit floating-point numbers. It would silently round an integer that is not
one of them, and cut off one beyond 64 bits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from daemon.api.replies.errors import invalid
from daemon.api.request.schema_walk import Place, Schema

EXACT = 2**53
"""Up to here every integer is a floating-point number, and so is the next one."""
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
LEAST_HELD = -(2**63 - 1024)
"""The least lower bound that a grammar can have."""
MOST_COUNTED = 2**31 - 1
"""More letters or items than any answer has."""

_MOST_SHOWN = 10**40

_BOUNDS = ("minimum", "maximum")
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_LEAST = ("minLength", "minItems", "minProperties", "minContains")
_MOST = ("maxLength", "maxItems", "maxProperties", "maxContains")


def make_exact(places: Iterable[Place], param: str) -> None:
    """Change schemas so that a grammar follows their numbers exactly. Raises ApiError 400 for the
    first number where that is impossible; `param` is the schemas' field.
    """
    for path, schema in places:
        for key in list(schema):
            if key in (*_BOUNDS, *_EXCLUSIVE):
                schema[key] = _bound(schema[key], key, f"{path}.{key}", param)
            elif key in (*_LEAST, *_MOST):
                _count(schema, key, f"{path}.{key}", param)
            elif key == "multipleOf" and not (_is_number(schema[key]) and schema[key] > 0):
                _refuse(schema[key], f"{path}.{key}", param, "must be a number above 0")
            elif key in ("const", "enum"):
                for number in _numbers_in(schema[key]):
                    if not _is_exact(number):
                        _refuse(number, f"{path}.{key}", param, _NOT_EXACT)


_NOT_EXACT = (
    "cannot be kept to exactly: whole numbers may be from -9007199254740992 to 9007199254740992, "
    "and beyond, within 64 bits, those that are floating-point numbers"
)


def _bound(value: Any, key: str, where: str, param: str) -> Any:
    if key in _EXCLUSIVE:
        if isinstance(value, bool):  # as in the drafts up to 4, beside `minimum`
            return value
        if _is_number(value) and not (isinstance(value, int) and abs(value) >= EXACT):
            return _within(value, where, param)
        if _is_number(value):
            _refuse(value, where, param, f"must be between -{EXACT} and {EXACT} to be exact")
    if not _is_number(value):
        _refuse(value, where, param, "must be a number")
    if key == "minimum" and value == INT64_MIN:
        return LEAST_HELD
    return _within(value, where, param)


def _within(value: float, where: str, param: str) -> int | float:
    if not _is_exact(value) or abs(value) > INT64_MAX:
        _refuse(value, where, param, _NOT_EXACT)
    return value


def _count(schema: Schema, key: str, where: str, param: str) -> None:
    value = schema[key]
    if not _is_number(value) or value != value // 1 or value < 0:
        _refuse(value, where, param, "must be a whole number, 0 or more")
    if value <= MOST_COUNTED:
        schema[key] = int(value)
    elif key in _LEAST:
        _refuse(value, where, param, f"can be at most {MOST_COUNTED}: no answer is longer")
    else:
        del schema[key]  # no answer reaches it


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(value: Any) -> bool:
    """Whether a grammar can represent this number exactly."""
    if isinstance(value, float) or abs(value) <= EXACT or value == INT64_MAX:
        return True
    return bool(INT64_MIN < value < INT64_MAX and int(float(value)) == value)


def _numbers_in(value: Any) -> Iterator[int | float]:
    """All numbers in JSON."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif _is_number(part):
            yield part


def _refuse(value: Any, where: str, param: str, what: str) -> NoReturn:
    if _is_number(value):
        short = isinstance(value, float) or abs(value) < _MOST_SHOWN
        text = str(value) if short else "a very large number"
    else:
        text = repr(value)[:40]
    raise invalid(f"`{where}` is {text} and {what}", param, "invalid_schema")
