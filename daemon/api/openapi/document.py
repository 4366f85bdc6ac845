"""The OpenAPI 3.1 document, made from the table of operations and the types."""

from collections.abc import Mapping
from typing import Any

import msgspec

from daemon import __version__
from daemon.api.openapi.conditions import CONDITIONS, FIELDS
from daemon.api.openapi.operations import EVERYWHERE, OPERATIONS, Operation
from daemon.api.replies.answers import ErrorAnswer, Health, Readiness

Json = dict[str, Any]

JSON = "application/json"
EVENTS = "text/event-stream"
REF = "#/components/schemas/{name}"
ABOUT = (
    "Language models on a workstation, in the shape of OpenAI's API. Ranges that depend on the "
    "model, such as the context length and the vocabulary, are checked but cannot be said here."
)
REQUEST_ID: Json = {"description": "The request's own id, or a new operation.", "schema": {}}
RETRY_AFTER: Json = {
    "description": "Seconds after which the same request may succeed.",
    "schema": {"type": "integer", "minimum": 1},
}


def document() -> bytes:
    """The document as JSON."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "llmd", "version": __version__, "description": ABOUT},
            "paths": paths,
            "components": {
                "schemas": _components(),
                "headers": {"RequestId": REQUEST_ID},
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            # Keys are asked for only where the configuration has some.
            "security": [{"key": []}, {}],
        }
    )


def _types() -> list[type]:
    named: list[type] = [ErrorAnswer, Readiness]
    for operation in OPERATIONS:
        kinds = (operation.body, operation.answer, operation.event)
        named += [kind for kind in kinds if kind is not None]
    return list(dict.fromkeys(named))


def _components() -> dict[str, Json]:
    _schemas, components = msgspec.json.schema_components(_types(), ref_template=REF)
    for name, conditions in CONDITIONS.items():
        components[name]["allOf"] = conditions
    for name, fields in FIELDS.items():
        components[name]["properties"] |= fields
    return components


def _operation(operation: Operation) -> Json:
    made: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {"200": _success(operation), **_errors(operation)},
    }
    if operation.parameters:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in operation.parameters
        ]
    if operation.body is not None:
        content = {JSON: {"schema": _ref(operation.body)}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _success(operation: Operation) -> Json:
    schema = _ref(operation.answer) if operation.answer is not None else {}
    content: Json = {media: {"schema": schema} for media in operation.media}
    if operation.event is not None:
        content[EVENTS] = {"schema": _event(operation.event)}
    return _response("Success.", content)


def _event(data: type) -> Json:
    """The schema of one server-sent event; the last one of a stream is [DONE]."""
    content = {"anyOf": [_ref(data), _ref(ErrorAnswer)]}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "anyOf": [
                    {"const": "[DONE]"},
                    {"type": "string", "contentMediaType": JSON, "contentSchema": content},
                ]
            }
        },
    }


def _errors(operation: Operation) -> dict[str, Json]:
    errors: Mapping[int, str] = EVERYWHERE | operation.errors
    made = {}
    for status, text in sorted(errors.items()):
        schema = _ref(ErrorAnswer)
        if status == 503 and operation.answer in {Health, Readiness}:
            schema = {"anyOf": [schema, _ref(operation.answer)]}
        response = _response(text, {JSON: {"schema": schema}})
        if status in {429, 503}:
            response["headers"]["Retry-After"] = RETRY_AFTER | {"required": status == 429}
        made[str(status)] = response
    return made


def _response(text: str, content: Json) -> Json:
    headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    return {"description": text, "headers": headers, "content": content}


def _ref(kind: type) -> Json:
    return {"$ref": REF.format(name=kind.__name__)}
