"""Messages about wrong grammars: plain words, without names of llguidance's own parts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from daemon.models.grammar import Compiler, GrammarError
from daemon.models.grammar_words import in_words

INSIDE = re.compile(
    r"lookarounds|Word[A-Z]|\(And|SearchRegex|Unimplemented|Unsatisfiable|registry|struct \w"
    r"|\bin regex\b|Constant|special tokens|panic|backtrace|ff_tokens|lexeme|anyOf is empty"
)
"""Words of llguidance and of its libraries that no client knows of."""
REGEX = LLMatcher.grammar_from_regex
LARK = LLMatcher.grammar_from_lark
WRONG: list[tuple[Callable[[str], str], Any, str]] = [
    (REGEX, r"\bfoo", r"the regular expression has a `\b` that cannot be followed"),
    (REGEX, r"a\B", r"the regular expression has a `\B` that cannot be followed"),
    (REGEX, "a^b", "the regular expression has a `^` that cannot be followed"),
    (REGEX, "$a", "the regular expression has a `$` that cannot be followed"),
    (REGEX, "(?m)^a$", "the regular expression has a `$` that cannot be followed"),
    (REGEX, "(?=a)b", "the regular expression cannot be read: look-around, "),
    (REGEX, "(", "the regular expression cannot be read: unclosed group"),
    (json.dumps, {"type": "foo"}, "`type` is foo, which JSON does not have"),
    (json.dumps, {"properties": {"a": {"type": ["foo"]}}}, "`type` is foo, which JSON does"),
    (json.dumps, {"type": 7}, "`type` must be a string or a list of strings"),
    (json.dumps, {"type": []}, "it has an empty `type`, `enum`, `anyOf` or `oneOf`"),
    (json.dumps, {"enum": []}, "it has an empty `type`, `enum`, `anyOf` or `oneOf`"),
    (json.dumps, {"enum": 7}, "`enum` must be of type array"),
    (json.dumps, {"properties": 7}, "`properties` must be of type object"),
    (json.dumps, {"items": 7}, "a schema in it is neither an object nor true or false"),
    (json.dumps, {"type": "string", "format": "regex"}, "`format` is regex, which cannot be"),
    (json.dumps, {"type": "string", "pattern": r"\bfoo"}, r"has a `\b` that cannot be followed"),
    (
        json.dumps,
        {"type": "string", "pattern": "^a$", "minLength": 5},
        "nothing fits the schema: no text has all that it asks of one",
    ),
    (
        json.dumps,
        {"type": "string", "enum": ["a"], "pattern": "b"},
        "nothing fits the schema: no text has all that it asks of one",
    ),
    (json.dumps, {"enum": ["a"], "minLength": 3}, 'the schema: "a" has another length'),
    (
        json.dumps,
        {"type": "number", "multipleOf": 3, "minimum": 1, "maximum": 2},
        "nothing fits the schema: no multiple of 3 is within its bounds",
    ),
    (json.dumps, {"patternProperties": {"a": {}, "a+": {}}}, "/a/ and /a+/ fit the same names"),
    (json.dumps, {"not": {}}, "the schema has keywords that cannot be followed: `not`"),
    (json.dumps, {"$schema": "foo"}, "`$schema` is foo, which is not known"),
    (json.dumps, {"x-guidance": {"foo": 1}}, "`x-guidance` has no field `foo`, and has `"),
    (LARK, "start: <foo>", 'the model has no token "<foo>"'),
    (LARK, "start: <[99999]>", "the model has no token 99999"),
    (LARK, "start: %regex 7", "invalid type: integer `7`, expected an object"),
    (LARK, 'root ::= "a"', "'_' is expected, and '=' stands there"),
]


@pytest.fixture(scope="module")
def compiler(folder: Path) -> Compiler:
    return Compiler(folder, 400)


@pytest.mark.parametrize(("write", "wrong", "words"), WRONG)
def test_a_wrong_grammar_is_told_in_plain_words(
    write: Callable[[Any], str], wrong: Any, words: str, compiler: Compiler
) -> None:
    text = write(wrong)
    grammar = LLMatcher.grammar_from_json_schema(text) if write is json.dumps else text
    with pytest.raises(GrammarError) as raised:
        compiler.matcher(grammar)
    assert words in str(raised.value)
    assert not INSIDE.search(str(raised.value)), raised.value


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "parser error: Too many items (limit 2000; ff_tokens); try avoiding short lexemes",
            "it is too complex to follow: too much is possible at once",
        ),
        ("panic: assertion failed: bt == 0\n<backtrace>\n 0: <unknown>", "it cannot be followed"),
    ],
)
def test_what_shows_only_on_the_way_is_told_in_plain_words(said: str, words: str) -> None:
    assert in_words(said) == words
