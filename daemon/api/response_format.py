"""From `response_format` to the grammar that an answer follows."""

from typing import TYPE_CHECKING

import msgspec

from daemon.api.errors import ApiError, invalid
from daemon.api.json_schema import decoded, followed
from daemon.api.schema import (
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher

SCHEMA_FIELD = "response_format.json_schema.schema"
WHITESPACE = r" |\n[ \t]{0,24}"
"""Between JSON's words, if anything: no small model shall fill its answer with blanks."""


def grammar_of(form: ResponseFormat | None) -> str:
    """llguidance's grammar, as text; empty for plain text. Raises ApiError 400, 501.

    It is not compiled here: `daemon.api.grammar` does so where that can harm nobody.
    """
    match form:
        case JsonObjectFormat():
            return _of_schema(b'{"type": "object"}')
        case JsonSchemaFormat():
            schema = followed(decoded(form.json_schema.schema, SCHEMA_FIELD), SCHEMA_FIELD)
            return _of_schema(msgspec.json.encode(schema))
        case GrammarFormat():
            return _matcher().grammar_from_lark(form.grammar)
        case RegexFormat():
            return _matcher().grammar_from_regex(form.regex)
    return ""


def _of_schema(schema: bytes) -> str:
    try:
        return _matcher().grammar_from_json_schema(
            schema.decode(), defaults={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise invalid(f"`{SCHEMA_FIELD}` is no JSON schema: {error}", SCHEMA_FIELD) from None


def _matcher() -> "type[LLMatcher]":
    """llguidance, imported by whom asks for a grammar."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        what = "`response_format` needs llguidance, which is not installed here"
        raise ApiError(501, what, param="response_format", code="not_supported") from None
    return LLMatcher
