"""Calls found in what a model says, however it comes."""

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.tools.format import LLAMA, QWEN, SMOLLM
from daemon.api.tools.reader import CallReader, Piece

NAMES = frozenset({"f", "get_time", "find"})
FORMATS = {"qwen": QWEN, "smollm": SMOLLM, "llama": LLAMA}
ARGUMENTS = '{"city": "Köln {\\"x\\"} </tool_call>", "days": [1, 2.5e3, null], "deep": {"a": {}}}'
ONE = '{"name": "f", "arguments": {"a": 1}}'


def read(text: str, cuts: list[int] | None = None, bare: bool = False) -> list[Piece]:
    """The pieces of a text that comes cut; neighbours of one kind are put together."""
    reader = CallReader(NAMES, bare)
    ends = sorted(min(cut, len(text)) for cut in cuts or [])
    bounds = [0, *ends, len(text)]
    pieces: list[Piece] = []
    for start, end in itertools.pairwise(bounds):
        pieces += reader.push(text[start:end])
    pieces += reader.finish()
    joined: list[Piece] = []
    for kind, text, raw in pieces:
        if joined and joined[-1].kind == kind != "call":
            last = joined.pop()
            joined.append(Piece(kind, last.text + text, last.raw + raw))
        else:
            joined.append(Piece(kind, text, raw))
    assert reader.num_calls == sum(piece.kind == "call" for piece in joined)
    return joined


def content(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == "text")


def calls(pieces: list[Piece]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.kind == "call":
            found.append((piece.text, ""))
        elif piece.kind == "arguments":
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
    return found


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_format_is_read(form) -> None:
    before = "" if form.bare else "Let me see.\n"
    wanted = [("f", json.loads(ARGUMENTS)), ("get_time", {}), ("find", {"q": "a;b"})]
    text = before + form.write(wanted)
    pieces = read(text, bare=form.bare)
    assert content(pieces) == before
    assert [(name, json.loads(arguments)) for name, arguments in calls(pieces)] == wanted
    letter_by_letter = read(text, list(range(len(text))), form.bare)
    assert letter_by_letter == pieces


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"<tool_call>{ONE}</tool_call>", [("f", '{"a": 1}')]),
        (f"<tool_call>\n\n[ {ONE} ,\n{ONE}\n]\n</tool_call>", [("f", '{"a": 1}')] * 2),
        (
            f"\n<tool_call>{ONE}</tool_call>\n<tool_call>{ONE}</tool_call>\n",
            [("f", '{"a": 1}')] * 2,
        ),
        (f"<|python_tag|>{ONE}; {ONE}", [("f", '{"a": 1}')] * 2),
        ('<tool_call>{"arguments": {"a": [1]}, "name": "f"}</tool_call>', [("f", '{"a": [1]}')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", '{"a": 1}')]),
        ('<tool_call>{"type": "function", "name": "f", "parameters": {}}', [("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', [("f", '{"a": 1}')]),
        ("<tool_call>" + ONE, [("f", '{"a": 1}')]),
    ],
)
def test_what_models_also_write(text: str, wanted: list[tuple[str, str]]) -> None:
    pieces = read(text)
    assert calls(pieces) == wanted
    assert content(pieces) == ""
    assert read(text, list(range(len(text)))) == pieces


@pytest.mark.parametrize(
    "text",
    [
        "Plain words, a < b, <tool>, <tool_cal",
        "<tool_call> is a tag of XML.",
        '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "fi", "arguments": {"a": 1}}</tool_call>',
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        '<tool_call>{"city": "Paris"}</tool_call>',
        "<tool_call>[1, 2]</tool_call>",
        "<tool_call>[]</tool_call>",
        '<|python_tag|>find.call(query="x")',
        '{"name": "f", "arguments": {"a": 1}}',
        "  \n ",
        "",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert read(text) == read(text, list(range(len(text))))
    assert (content(read(text)), calls(read(text))) == (text, [])


def test_json_that_is_no_call_is_text_in_the_bare_format() -> None:
    for text in ('{"city": "Paris"}', '{"name": "Bob", "age": 3}', " {}", '{"name": "f", "id": 1'):
        assert (content(read(text, bare=True)), calls(read(text, bare=True))) == (text, [])


def test_a_call_after_one_that_is_none() -> None:
    text = f'<tool_call>{{"name": "g <tool_call>{ONE}</tool_call> bye'
    pieces = read(text)
    assert content(pieces) == '<tool_call>{"name": "g  bye'
    assert calls(pieces) == [("f", '{"a": 1}')]


def test_arguments_that_are_no_json_stay_with_their_call() -> None:
    pieces = read('<tool_call>{"name": "f", "arguments": {"a": \'x\'}}\n</tool_call> and')
    assert calls(pieces) == [("f", "{\"a\": 'x'}}\n")]
    assert content(pieces) == " and"


def test_a_call_cut_short_shows_what_came() -> None:
    assert calls(read('<tool_call>{"name": "f", "arguments": {"a": "lon')) == [("f", '{"a": "lon')]


def test_text_streams_as_soon_as_it_is_certain() -> None:
    reader = CallReader(NAMES, bare=False)
    assert reader.push("Hello <") == [Piece("text", "Hello ", "Hello ")]
    assert reader.push("b> <tool_") == [Piece("text", "<b> ", "<b> ")]
    assert reader.push('call>\n{"name": "find", "arg') == []
    assert reader.push('uments": {') == []
    assert [piece.kind for piece in reader.push('"')] == ["call", "arguments"]


def test_arguments_stream_as_they_come() -> None:
    reader = CallReader(NAMES, bare=False)
    first = reader.push('<tool_call>{"name": "find", "arguments": {"q"')
    assert [(piece.kind, piece.text) for piece in first] == [
        ("call", "find"),
        ("arguments", '{"q"'),
    ]
    (more,) = reader.push(': "a')
    assert (more.kind, more.text) == ("arguments", ': "a')


PARTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "<", "_call>", "\n", " ", "\\"),
        *("{", "}", "[", "]", ",", ";", ":", '"', "'", "é", "x", "1", "null", '\\"', "{}"),
        *('{"name": ', '"f"', '"get_time"', ', "arguments": ', ', "parameters": ', '{"a": "b"}'),
        *('"type": "function", ', '"arguments": {', ONE, '{"name": "f", "arguments": {"a": '),
        *(QWEN.write([("f", {"a": 1})]), SMOLLM.write([("f", {}), ("find", {"q": "]"})])),
    ]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
MARK = r"(</tool_call>|[\]}\s])*"


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, max_size=14), st.lists(st.integers(0, 200), max_size=12), st.booleans())
def test_nothing_is_lost_and_cuts_change_nothing(
    parts: list[str], cuts: list[int], bare: bool
) -> None:
    text = "".join(parts)
    pieces = read(text, bare=bare)
    assert "".join(piece.raw for piece in pieces) == text
    for piece in pieces:
        assert piece.kind in {"text", "call", "arguments", "mark"}
        assert piece.kind != "text" or piece.text == piece.raw
        assert piece.kind != "mark" or re.fullmatch(MARK, piece.raw)
        assert piece.kind != "call" or piece.text in piece.raw
    assert read(text, cuts, bare) == pieces
    assert read(text, list(range(len(text))), bare) == pieces


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(list(FORMATS.values())),
    st.lists(
        st.tuples(
            st.sampled_from(sorted(NAMES)),
            st.dictionaries(
                st.text(max_size=5),
                st.recursive(
                    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(max_size=8),
                    lambda inner: (
                        st.lists(inner, max_size=3)
                        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
                    ),
                    max_leaves=5,
                ),
                max_size=3,
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_what_a_format_writes_is_read_back(form, wanted, cuts: list[int]) -> None:
    pieces = read(form.write(wanted), cuts, form.bare)
    assert [(name, json.loads(arguments)) for name, arguments in calls(pieces)] == wanted
    assert content(pieces) == ""
