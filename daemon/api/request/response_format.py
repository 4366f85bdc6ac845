"""The grammar of an answer, from the fields of structured outputs."""

import json
from typing import TYPE_CHECKING, Any

import msgspec

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.request.json_schema import decoded, followed
from daemon.api.request.schema import (
    Common,
    GrammarFormat,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    RegexFormat,
    ResponseFormat,
    TextFormat,
)

if TYPE_CHECKING:
    from llguidance import LLMatcher

SCHEMA_FIELD = "response_format.json_schema.schema"
WHITESPACE = r" |\n[ \t]{0,24}"
"""White space between JSON's tokens, bounded: a small model would fill its answer with it."""
MAX_EBNF_BYTES = 16 * 1024
"""Bound on the time to rewrite EBNF."""


class Wanted(msgspec.Struct, frozen=True):
    """The form that an answer must follow, and the request's field that sets it."""

    form: ResponseFormat
    field: str

    @property
    def schema_field(self) -> str:
        """The field that holds a JSON schema."""
        return SCHEMA_FIELD if self.field == "response_format" else self.field


def wanted(request: Common) -> Wanted | None:
    """The form that a request's answers must follow; None: any. Raises ApiError 400."""
    found: list[Wanted] = []
    if request.response_format is not None and not isinstance(request.response_format, TextFormat):
        found.append(Wanted(request.response_format, "response_format"))
    outputs = request.structured_outputs
    for field, kind, value in (
        ("guided_json", "json", request.guided_json),
        ("guided_choice", "choice", request.guided_choice),
        ("guided_regex", "regex", request.guided_regex),
        ("guided_grammar", "grammar", request.guided_grammar),
        *(
            (f"structured_outputs.{name}", name, getattr(outputs, name))
            for name in (outputs.__struct_fields__ if outputs is not None else ())
        ),
    ):
        if value is not None and value is not False:
            found.append(Wanted(_form(kind, value, field), field))
    if outputs is not None and not any(form.field.startswith("structured") for form in found):
        what = "`structured_outputs` must have one of `json`, `json_object`, `choice`, `regex` and "
        raise invalid(f"{what}`grammar`", "structured_outputs")
    if len(found) > 1:
        both = " and ".join(f"`{form.field}`" for form in found[:2])
        raise invalid(
            f"{both} cannot be combined: one of them says what the answer is", found[1].field
        )
    return found[0] if found else None


def _form(kind: str, value: Any, field: str) -> ResponseFormat:
    """A field of vLLM as the equal `response_format`. Raises ApiError 400."""
    if kind == "json":
        return JsonSchemaFormat(JsonSchema(_schema(value, field), "schema"))
    if kind == "choice":
        texts = (json.dumps(text) for text in value)  # Lark takes no bare U+007F
        return GrammarFormat(f"start: {' | '.join(texts)}")
    if kind == "grammar":
        return GrammarFormat(_lark(value, field))
    return RegexFormat(value) if kind == "regex" else JsonObjectFormat()


def _schema(value: str | dict[str, msgspec.Raw], field: str) -> dict[str, msgspec.Raw]:
    if isinstance(value, dict):
        return value
    try:
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise invalid(f"`{field}` must be a JSON schema, or the text of one", field) from None


def _lark(grammar: str, field: str) -> str:
    """A grammar in Lark's dialect; vLLM takes EBNF (`root ::= ...`), too. Raises ApiError 400."""
    if "::=" not in grammar:
        return grammar
    _matcher()
    from llguidance.gbnf_to_lark import any_to_lark

    if len(grammar.encode()) > MAX_EBNF_BYTES:
        what = f"`{field}` may have {MAX_EBNF_BYTES} bytes of EBNF, and more as Lark"
        raise invalid(what, field, "invalid_grammar")
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # noqa: BLE001 - any fault of a client's text
        why = " ".join(str(error).split())[:200]
        raise invalid(f"`{field}` is no EBNF: {why}", field, "invalid_grammar") from None


def grammar_of(wanted_form: Wanted | None) -> str:
    """llguidance's grammar, as text; empty for plain text. Raises ApiError 400, 501.

    It is not compiled here: `daemon.api.sandbox.grammar` does that where it can do no harm.
    """
    match wanted_form.form if wanted_form is not None else None:
        case JsonObjectFormat():
            return _of_schema(b'{"type": "object"}', "")
        case JsonSchemaFormat(json_schema=JsonSchema(schema=given)) if wanted_form is not None:
            schema = followed(decoded(given, wanted_form.schema_field), wanted_form.schema_field)
            return _of_schema(msgspec.json.encode(schema), wanted_form.schema_field)
        case GrammarFormat(grammar=grammar):
            return _matcher().grammar_from_lark(grammar)
        case RegexFormat(regex=regex):
            return _matcher().grammar_from_regex(regex)
    return ""


def _of_schema(schema: bytes, field: str) -> str:
    try:
        return _matcher().grammar_from_json_schema(
            schema.decode(), defaults={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise invalid(f"`{field}` is no JSON schema: {error}", field) from None


def _matcher() -> "type[LLMatcher]":
    """llguidance's class, imported when a grammar is first needed."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        what = "an answer's form needs llguidance, which is not installed here"
        raise ApiError(501, what, param="response_format", code="not_supported") from None
    return LLMatcher
