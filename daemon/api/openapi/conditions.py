"""Conditions between the fields of a request, as JSON Schema, which their types cannot express.

Null stands for a field that is left out, as everywhere. `tests/api/test_openapi.py` checks that the
server accepts bodies of these schemas.
"""

from typing import Any, get_args

from daemon.api.answer.prepare import MAX_CHOICES, MAX_PROMPTS, TAKEN
from daemon.api.request.schema import INT32_MAX, Role
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST

Json = dict[str, Any]

_FORMS = (
    *("response_format", "structured_outputs"),
    *("guided_json", "guided_choice", "guided_regex", "guided_grammar"),
)
"""Fields of which one sets an answer's form."""
_OUTPUTS = ("json", "json_object", "choice", "regex", "grammar")
_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "tools")
_NO_TEXT: Json = {"anyOf": [{"type": "null"}, {"properties": {"type": {"const": "text"}}}]}
_AT_ONCE = MAX_CHOICES // MAX_SEQUENCES_PER_REQUEST
"""Prompts that may all have the most answers of a request each."""


def left_out(*fields: str) -> Json:
    """The condition that these fields are absent."""
    return {"properties": {field: {"type": "null"} for field in fields}}


def given(field: str, value: Json) -> Json:
    """The condition that this field is present and fits `value`."""
    return {"required": [field], "properties": {field: value}}


def _either(*schemas: Json) -> Json:
    return {"anyOf": list(schemas)}


def _both(first: Json, second: Json) -> Json:
    fields = {**first.get("properties", {}), **second.get("properties", {})}
    return {"required": first.get("required", []), "properties": fields}


def _not_true(field: str) -> Json:
    return {"properties": {field: {"enum": [False, None]}}}


def _followed(form: str) -> Json:
    """The condition that `form` alone sets the answer's form, and so its end."""
    others = left_out(*(field for field in _FORMS if field != form))
    if form != "response_format":
        others["properties"]["response_format"] = _NO_TEXT
    return _both(others, _not_true("ignore_eos"))


def _prompt() -> Json:
    token: Json = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}
    tokens: Json = {"type": "array", "items": token, "minItems": 1}
    several: Json = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
    texts, lists = {**several, "items": {"type": "string"}}, {**several, "items": tokens}
    return _either({"type": "string"}, tokens, texts, lists)


_STREAMED = _either(left_out("stream_options"), given("stream", {"const": True}))
_ONE_FORM = _either(
    {"properties": {**left_out(*_FORMS)["properties"], "response_format": _NO_TEXT}},
    *map(_followed, _FORMS),
)
_IS = {"not": {"enum": [None, False]}}
_ONE_OUTPUT = _either(
    *(
        _both(
            given(name, _IS),
            {"properties": {other: {"enum": [None, False]} for other in _OUTPUTS if other != name}},
        )
        for name in _OUTPUTS
    )
)
_VALUES: Json = {
    "properties": {"chat_template_kwargs": {"propertyNames": {"not": {"enum": sorted(TAKEN)}}}}
}
_BEGINS = _either(_not_true("continue_final_message"), _not_true("add_generation_prompt"))
_CALLED = _either(
    {"properties": {"tool_choice": {"enum": ["none", "auto", None]}}},
    given("tools", {"type": "array", "minItems": 1}),
)
_FEW: Json = {"anyOf": [{"type": "null"}, {"maximum": _AT_ONCE}]}
_FEW_PROMPTS = _either({"type": "string"}, {"maxItems": _AT_ONCE})
_OTHERS = sorted(set(get_args(Role)) - {"tool"})

CONDITIONS: dict[str, list[Json]] = {
    "Message": [
        _either(
            {"properties": {"role": {"enum": _OTHERS}}},
            given("tool_call_id", {"type": "string", "minLength": 1}),
        ),
        _either(
            {"properties": {"role": {"const": "assistant"}}},
            {"properties": {"tool_calls": _either({"type": "null"}, {"maxItems": 0})}},
        ),
    ],
    "Function": [
        {"properties": {"parameters": {"properties": {"type": {"const": "object"}}}}},
    ],
    "StructuredOutputs": [_ONE_OUTPUT],
    "ChatRequest": [
        *(_STREAMED, _ONE_FORM, _VALUES, _BEGINS, _CALLED),
        _either(left_out("top_logprobs"), given("logprobs", {"const": True})),
    ],
    "CompletionRequest": [
        *(_STREAMED, _ONE_FORM),
        _either(
            {"properties": {"max_tokens": _either({"type": "null"}, {"minimum": 1})}},
            given("echo", {"const": True}),
        ),
        _either(
            _both(left_out("best_of"), {"properties": {"n": _FEW}}),
            _both(left_out("best_of"), {"properties": {"prompt": _FEW_PROMPTS}}),
            {"properties": {"best_of": {"const": 1}, "n": {"enum": [None, 1]}}},
        ),
    ],
    "TokenizeRequest": [
        *(_VALUES, _BEGINS),
        _either(
            _both(given("messages", {"type": "array"}), left_out("prompt")),
            _both(given("prompt", {"type": "string"}), left_out("messages", *_OF_MESSAGES)),
        ),
    ],
}
"""Conditions by the name of a type."""

FIELDS: dict[str, Json] = {
    "CompletionRequest": {
        "prompt": _prompt(),
        "suffix": {"enum": [None, ""], "default": None},
    },
}
"""Fields that accept less than their types."""
