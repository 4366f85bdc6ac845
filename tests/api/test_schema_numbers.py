"""A number in a schema is kept to exactly, or refused by its name."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.replies.errors import ApiError
from daemon.api.request.json_schema import followed
from daemon.models.grammar import GrammarError
from tests.api.grammars import Grammars

INT64_MAX = 2**63 - 1
FIELD = "the.field"
HUGE = 10**20


def integer(**bounds: Any) -> dict[str, Any]:
    return {"type": "integer", **bounds}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (integer(minimum=HUGE, maximum=HUGE + 1), "`the.field.minimum` is 100000000000000000000 and"),
    (integer(minimum=2**64 - 1, maximum=2**64 - 1), "`the.field.minimum` is 18446744073709551615"),
    (integer(minimum=2**63), "`the.field.minimum` is 9223372036854775808"),
    (integer(maximum=2**64), "`the.field.maximum` is 18446744073709551616"),
    (integer(minimum=-(2**63) - 1), "`the.field.minimum` is -9223372036854775809"),
    (integer(minimum=2**53 + 1), "`the.field.minimum` is 9007199254740993"),
    (integer(maximum=-(2**53) - 1), "`the.field.maximum` is -9007199254740993"),
    (integer(exclusiveMaximum=INT64_MAX), "`the.field.exclusiveMaximum`"),
    (integer(exclusiveMinimum=2**62), "`the.field.exclusiveMinimum`"),
    ({"type": "number", "minimum": HUGE + 1}, "`the.field.minimum`"),
    ({"type": "number", "maximum": 1e300}, "`the.field.maximum` is 1e+300"),
    ({"minimum": 2**63}, "`the.field.minimum`"),
    (integer(minimum=10**5000), "`the.field.minimum` is a very large number"),
    (integer(minimum="5"), "`the.field.minimum` is '5' and must be a number"),
    (integer(maximum=True), "`the.field.maximum` is True and must be a number"),
    (integer(multipleOf=0), "`the.field.multipleOf` is 0 and must be a number above 0"),
    (integer(multipleOf=-3), "`the.field.multipleOf` is -3"),
    (integer(multipleOf="x"), "`the.field.multipleOf` is 'x'"),
    ({"type": "string", "minLength": HUGE}, "`the.field.minLength` is 100000000000000000000"),
    ({"type": "string", "minLength": -1}, "`the.field.minLength` is -1 and must be a whole"),
    ({"type": "string", "maxLength": 1.5}, "`the.field.maxLength` is 1.5 and must be a whole"),
    ({"type": "string", "maxLength": "5"}, "`the.field.maxLength` is '5'"),
    ({"type": "array", "minItems": 2**32}, "`the.field.minItems` is 4294967296"),
    ({"type": "array", "minItems": True}, "`the.field.minItems` is True"),
    ({"type": "object", "minProperties": 2**40}, "`the.field.minProperties`"),
    ({"const": HUGE + 1}, "`the.field.const` is 100000000000000000001"),
    ({"const": 2**53 + 1}, "`the.field.const` is 9007199254740993"),
    ({"enum": [1, -(2**63)]}, "`the.field.enum` is -9223372036854775808"),
    ({"enum": [{"a": [2**63 + 1]}]}, "`the.field.enum` is 9223372036854775809"),
    ({"properties": {"a": {"items": integer(minimum=HUGE)}}}, "`the.field.properties.a.items.min"),
    ({"anyOf": [{}, integer(minimum=HUGE)]}, "`the.field.anyOf[1].minimum`"),
    ({"allOf": [{"$ref": "#/$defs/D"}], "$defs": {"D": integer(minimum=HUGE)}}, "$defs.D.minimum"),
    ({"$ref": "#/x/D", "x": {"D": integer(minimum=HUGE)}}, "#/x/D.minimum"),
    ({"prefixItems": [{"not": integer(maximum=HUGE)}]}, "`the.field.prefixItems[0].not.maximum`"),
    ({"additionalProperties": integer(minimum=HUGE)}, "`the.field.additionalProperties.minimum`"),
]


@pytest.mark.parametrize(("schema", "said"), REFUSED)
def test_what_no_grammar_keeps_to_is_named(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as caught:
        followed(schema, FIELD)
    assert said in caught.value.message
    assert (caught.value.status, caught.value.param) == (400, FIELD)


KEPT: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (integer(maximum=INT64_MAX), [0, INT64_MAX, -HUGE], [INT64_MAX + 1]),
    (integer(minimum=0, maximum=INT64_MAX), [0, INT64_MAX], [-1, INT64_MAX + 1]),
    (integer(minimum=-(2**63), maximum=INT64_MAX), [-5, 10**18], [-(2**63) - 1, INT64_MAX + 1]),
    (integer(minimum=2**53, maximum=2**53 + 2), [2**53, 2**53 + 1], [2**53 - 1, 2**53 + 3]),
    (integer(minimum=10**17), [10**17, HUGE], [10**17 - 1]),
    (integer(exclusiveMinimum=2**52, exclusiveMaximum=2**52 + 2), [2**52 + 1], [2**52, 2**52 + 2]),
    (integer(minimum=1, exclusiveMinimum=True), [2], [1]),
    (integer(minimum=1e3), [1000], [999]),
    (integer(multipleOf=7, minimum=10**6), [7 * 142858], [10**6]),
    ({"type": "number", "minimum": 1e17}, [10**17, 15 * 10**16], [10**17 - 1]),
    ({"type": "string", "maxLength": HUGE}, ["a", ""], [1]),
    ({"type": "string", "minLength": 2.0, "maxLength": 3.0}, ["aa", "aaa"], ["a", "aaaa"]),
    ({"type": "array", "maxItems": 2**40, "items": integer()}, [[1, 2]], [["a"]]),
    ({"type": "object", "maxProperties": 1e30}, [{}], [1]),
    ({"const": INT64_MAX}, [INT64_MAX], [INT64_MAX - 1]),
    ({"const": 2**62}, [2**62], [2**62 + 1]),
    ({"enum": [-(2**60), 2**53]}, [-(2**60), 2**53], [2**53 + 1]),
    (
        {"type": "object", "properties": {"minimum": {"const": 1}}},
        [{"minimum": 1}],
        [{"minimum": 2}],
    ),
    ({"enum": [1], "default": HUGE, "examples": [HUGE]}, [1], [HUGE]),
]


@pytest.mark.parametrize(("schema", "fitting", "others"), KEPT)
def test_what_is_taken_is_kept_to(
    schema: dict[str, Any], fitting: list[Any], others: list[Any], grammars: Grammars
) -> None:
    made = followed(schema, FIELD)
    assert [value for value in fitting if not grammars.fits(made, value)] == []
    assert [value for value in others if grammars.fits(made, value)] == []


numbers = st.one_of(
    st.integers(-(2**66), 2**66),
    st.builds(lambda power, more: 2**power + more, st.integers(0, 64), st.integers(-2, 2)),
    st.builds(lambda power, more: -(2**power) + more, st.integers(0, 64), st.integers(-2, 2)),
    st.integers(-20, 20),
)
keys = st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])


@given(st.dictionaries(keys, numbers, min_size=1, max_size=2), st.integers(-2, 2))
def test_any_bounds_are_kept_to_or_refused(
    grammars: Grammars, bounds: dict[str, int], beside: int
) -> None:
    values = [bound + beside for bound in bounds.values()]
    with suppress(ApiError, GrammarError):
        made = followed(integer(**bounds), FIELD)
        taken = [value for value in values if grammars.fits(made, value)]
        assert all(_fits(bounds, value) for value in taken)


def _fits(bounds: dict[str, int], value: int) -> bool:
    checks = {
        "minimum": value.__ge__,
        "maximum": value.__le__,
        "exclusiveMinimum": value.__gt__,
        "exclusiveMaximum": value.__lt__,
    }
    return all(checks[key](bound) for key, bound in bounds.items())
