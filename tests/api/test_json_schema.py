"""Objects hold what their schema names, where nothing else asks for more."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.replies.errors import ApiError
from daemon.api.request.json_schema import followed
from tests.api.grammars import Grammars

NUMBER = {"type": "integer"}
FIELD = "the.field"


def thing(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, NUMBER), **more}


def shut(*names: str, **more: Any) -> dict[str, Any]:
    return {**thing(*names, **more), "additionalProperties": False}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


CLOSED = {
    "an object": (thing("a"), shut("a")),
    "one in another": (
        thing(properties={"a": thing("b")}),
        shut(properties={"a": shut("b")}),
    ),
    "items": (
        {"type": "array", "items": thing("a"), "prefixItems": [thing("b")]},
        {"type": "array", "items": shut("a"), "prefixItems": [shut("b")]},
    ),
    "one or null": (
        {"anyOf": [thing("a"), {"type": "null"}]},
        {"anyOf": [shut("a"), {"type": "null"}]},
    ),
    "a definition": (
        thing(properties={"a": ref("D")}, **{"$defs": {"D": thing("b")}}),
        shut(properties={"a": ref("D")}, **{"$defs": {"D": shut("b")}}),
    ),
    "a tree": (
        thing(properties={"child": {"$ref": "#"}}),
        shut(properties={"child": {"$ref": "#"}}),
    ),
    "a union with a discriminator": (
        {
            "oneOf": [ref("A"), ref("B")],
            "discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/A"}},
            "$defs": {"A": thing("a", "k"), "B": thing("b", "k")},
        },
        {
            "oneOf": [ref("A"), ref("B")],
            "discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/A"}},
            "$defs": {"A": shut("a", "k"), "B": shut("b", "k")},
        },
    ),
    "a schema with a name": (
        thing("a", **{"$id": "http://a/b"}),
        shut("a", **{"$id": "http://a/b"}),
    ),
    "any place in it": (
        thing(properties={"a": thing("b"), "c": {"$ref": "#/properties/a"}}),
        shut(properties={"a": shut("b"), "c": {"$ref": "#/properties/a"}}),
    ),
    "a place that no keyword has": (
        thing(
            properties={"a": {"$ref": "#/components/schemas/D"}},
            components={"schemas": {"D": thing("b")}},
        ),
        shut(
            properties={"a": {"$ref": "#/components/schemas/D"}},
            components={"schemas": {"D": shut("b")}},
        ),
    ),
    "a map of objects": (
        {"type": "object", "additionalProperties": thing("a")},
        {"type": "object", "additionalProperties": shut("a")},
    ),
}
OPEN = {
    "what says so itself": thing("a", additionalProperties=True),
    "what names nothing": {"type": "object"},
    "a required name without a schema": thing("a", required=["a", "b"]),
    "inheritance": {
        "allOf": [ref("Base"), thing("b", required=["b"])],
        "$defs": {"Base": thing("a", required=["a"])},
    },
    "properties beside branches": thing("a", anyOf=[thing("b"), thing("c")]),
    "branches that must exclude each other": {"oneOf": [thing("a"), thing("b")]},
    "a condition": thing("a", **{"if": thing("a"), "then": thing("b")}),
    "what must not be": {"not": thing("a")},
    "patterns": thing("a", patternProperties={"^x": thing("b")}),
    "at least two names": thing("a", minProperties=2),
    "a definition that another place extends": {
        "allOf": [{"properties": {"x": ref("D")}}, {"properties": {"x": thing("b")}}],
        "$defs": {"D": {"properties": {"y": ref("E")}}, "E": thing("e")},
    },
    "an example that looks like a schema": {"type": "object", "examples": [thing("a")]},
    "a part of what an enum lists": thing(properties={"a": thing("b")}, enum=[{"a": {"c": 1}}]),
    "a part of what is constant": thing(properties={"a": thing("b")}, const={"a": {"c": 1}}),
    "a part beside one of a whole": thing(
        properties={"a": thing("b")}, allOf=[{"properties": {"a": {"required": ["c"]}}}]
    ),
    "a part beside one of a definition": thing(
        properties={"a": thing("b")},
        **{"$ref": "#/$defs/D", "$defs": {"D": {"properties": {"a": {"required": ["c"]}}}}},
    ),
    "a part beside a pattern": thing(
        properties={"a": thing("b")}, patternProperties={"^a": {"required": ["c"]}}
    ),
    "items beside branches": {"items": thing("a"), "anyOf": [{"items": {"required": ["c"]}}]},
    "branches beside items": {"anyOf": [{"items": thing("a")}], "items": {"required": ["c"]}},
    "items of which one must be": {"items": thing("a"), "contains": {"required": ["c"]}},
    "a pattern that reads like a keyword": {
        "anyOf": [thing(properties={"a": ref("D")}, patternProperties={"enum": ref("D")})],
        "$defs": {"D": thing("b")},
    },
    "a required name that is no name": thing("a", required=[["a"]]),
}


@pytest.mark.parametrize("name", CLOSED)
def test_objects_are_closed(name: str) -> None:
    given_schema, expected = CLOSED[name]
    before = json.dumps(given_schema)
    assert followed(given_schema, FIELD) == expected
    assert json.dumps(given_schema) == before


@pytest.mark.parametrize("name", OPEN)
def test_objects_stay_open(name: str) -> None:
    assert followed(OPEN[name], FIELD) == OPEN[name]


def test_a_definition_is_open_where_only_one_of_its_uses_is_a_part() -> None:
    schema = {
        "properties": {"whole": ref("D"), "part": {"allOf": [ref("D"), thing("b")]}},
        "$defs": {"D": thing("a")},
    }
    assert followed(schema, FIELD) == {**schema, "additionalProperties": False}


names = st.sampled_from("ab")
plain = st.sampled_from([NUMBER, {"type": "null"}, thing("a"), thing("b", required=["b"])])


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(names, inner, max_size=2)
    return st.one_of(
        st.fixed_dictionaries({}, optional={"properties": named, "anyOf": lists, "allOf": lists}),
        st.fixed_dictionaries(
            {"properties": named}, optional={"required": st.lists(names, unique=True)}
        ),
        st.fixed_dictionaries({"items": inner, "type": st.just("array")}),
        st.fixed_dictionaries({"oneOf": lists}, optional={"not": inner, "if": inner}),
    )


definitions = st.recursive(plain, grown, max_leaves=4)  # none refers to itself without end
schemas = st.recursive(plain | st.just(ref("D")), grown, max_leaves=8)
values = st.recursive(
    st.none() | st.integers(0, 1),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)


@given(schemas, definitions, values)
def test_what_fits_the_json_schema_fits_the_given_one(root: Any, shared: Any, value: Any) -> None:
    schema = {**root, "$defs": {"D": shared}}
    if jsonschema_rs.is_valid(followed(schema, FIELD), value):
        assert jsonschema_rs.is_valid(schema, value)


def to(reference: str, **more: Any) -> dict[str, Any]:
    return thing(properties={"a": {"$ref": reference}}, **more)


def defined(name: str, what: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": {name: what}}


REFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "a slash": (to("#/$defs/a~1b", **defined("a/b", thing("b"))), "a/b"),
    "a tilde": (to("#/$defs/a~0b", **defined("a~b", thing("b"))), "a~b"),
    "a tilde before a one": (to("#/$defs/a~01b", **defined("a~1b", thing("b"))), "a~1b"),
    "a percent sign": (to("#/$defs/a%25b", **defined("a%b", thing("b"))), "a%b"),
    "an encoded space": (to("#/$defs/a%20b", **defined("a b", thing("b"))), "a b"),
    "a space as it is": (to("#/$defs/a b", **defined("a b", thing("b"))), "a b"),
    "letters as they are": (to("#/$defs/Größe", **defined("Größe", thing("b"))), "Größe"),
    "encoded letters": (to("#/$defs/Gr%C3%B6%C3%9Fe", **defined("Größe", thing("b"))), "Größe"),
    "a bracket": (to("#/$defs/Page[int]", **defined("Page[int]", thing("b"))), "Page[int]"),
    "no name": (to("#/$defs/", **defined("", thing("b"))), ""),
    "an anchor": (to("#here", **defined("D", thing("b", **{"$anchor": "here"}))), "D"),
    "the root's name": (
        to("http://a/b#/$defs/D", **{"$id": "http://a/b"}, **defined("D", thing("b"))),
        "D",
    ),
    "a place in a root with a name": (
        to("#/$defs/D", **{"$id": "urn:uuid:1"}, **defined("D", thing("b"))),
        "D",
    ),
    "a name beside the root's": (
        to("other", **{"$id": "http://a/b"}, **defined("D", thing("b", **{"$id": "other"}))),
        "D",
    ),
    "a name without one of the root": (
        to("other", **defined("D", thing("b", **{"$id": "other"}))),
        "D",
    ),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_a_reference_is_followed_however_it_is_written(case: str, grammars: Grammars) -> None:
    schema, name = REFERENCES[case]
    made = followed(schema, FIELD)
    assert made["$defs"][name]["additionalProperties"] is False
    assert grammars.fits(made, {"a": {"b": 5}})
    assert not grammars.fits(made, {"a": {"c": 5}})
    assert not grammars.fits(made, {"a": 5})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            to("#/$defs/D"),
            "`the.field.properties.a` has a `$ref` '#/$defs/D' that leads to nothing",
        ),
        (to("http://elsewhere/x"), "'http://elsewhere/x' that leads to nothing"),
        (to("#/properties/a/x"), "leads to nothing"),
        (to("#/required/7", required=["a"]), "leads to nothing"),
        (to("#nowhere"), "leads to nothing"),
        (to("http://[x"), "is no address"),
        ({"$ref": 5}, "is no string"),
        (thing(properties={"a": {"$dynamicRef": "#x"}}), "the.field.properties.a.$dynamicRef"),
        ({"$recursiveRef": "#"}, "the.field.$recursiveRef"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_named(schema: Any, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        followed(schema, FIELD)
    assert said in caught.value.message and caught.value.param == FIELD
    assert caught.value.status == 400


def test_names_of_properties_are_no_keywords() -> None:
    schema = thing("$id", "$ref", "$anchor", "$dynamicRef", "minimum", "const", "maxLength")
    assert followed(schema, FIELD) == {**schema, "additionalProperties": False}
