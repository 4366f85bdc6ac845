"""What is served where, with which bodies and answers: the table that the description is made of.

A test holds it to the routes of the running server.
"""

import msgspec

from daemon.api.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Detokenized,
    Health,
    ModelCard,
    ModelList,
    Readiness,
    Status,
    Tokenized,
    Version,
)
from daemon.api.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

EVERYWHERE = {
    400: "The request is at fault; `param` names the field.",
    401: "An API key is needed, and this one is not valid or missing.",
    403: "This host name or origin is not allowed by the configuration.",
    500: "The server is at fault.",
    503: "The server is starting, leaving, or has too many connections.",
}
WITH_BODY = {
    408: "The body did not come in time.",
    413: "The body is larger than `server.body_limit_bytes`.",
    415: "The body is compressed.",
    429: "A quota is used up, or too many answers are under way.",
}
NO_MODEL = {404: "No model of this name is served."}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a path."""

    method: str  # "get" | "post"
    path: str
    name: str  # the operationId
    summary: str
    body: type | None = None  # JSON
    answer: type | None = None  # JSON; None: text or JSON that no type describes
    media: tuple[str, ...] = ("application/json",)  # of the answer
    event: type | None = None  # of a streamed answer
    errors: dict[int, str] = {}  # beyond EVERYWHERE
    parameters: tuple[str, ...] = ()  # in the path


def _asking(path: str, name: str, summary: str, body: type, answer: type) -> Operation:
    return Operation(
        method="post",
        path=path,
        name=name,
        summary=summary,
        body=body,
        answer=answer,
        errors=WITH_BODY | NO_MODEL,
    )


OPERATIONS = (
    msgspec.structs.replace(
        _asking(
            "/v1/chat/completions",
            "createChatCompletion",
            "What the assistant says next.",
            ChatRequest,
            ChatCompletion,
        ),
        event=ChatChunk,
    ),
    msgspec.structs.replace(
        _asking(
            "/v1/completions",
            "createCompletion",
            "How a text goes on.",
            CompletionRequest,
            Completion,
        ),
        event=CompletionChunk,
    ),
    *(
        _asking(
            f"{root}/{verb}",
            f"{verb}{suffix}",
            summary,
            body,
            answer,
        )
        for root, suffix in (("/v1", ""), ("", "AtRoot"))
        for verb, summary, body, answer in (
            ("tokenize", "The tokens of a text or conversation.", TokenizeRequest, Tokenized),
            ("detokenize", "The text of tokens.", DetokenizeRequest, Detokenized),
        )
    ),
    *(
        Operation(
            method="get",
            path=path,
            name=name,
            summary="The model that is served.",
            answer=ModelList,
        )
        for path, name in (("/v1/models", "listModels"), ("/v1/models/", "listModelsAtSlash"))
    ),
    Operation(
        method="get",
        path="/v1/models/{id}",
        name="retrieveModel",
        summary="The model of this name.",
        answer=ModelCard,
        errors=NO_MODEL,
        parameters=("id",),
    ),
    *(
        Operation(
            method="get",
            path=f"/{name}",
            name=name,
            summary="Whether answers make progress, and when the last step was; 503 if not.",
            answer=Health,
        )
        for name in ("health", "ping")
    ),
    Operation(
        method="get",
        path="/version",
        name="version",
        summary="The version of llmd.",
        answer=Version,
    ),
    Operation(
        method="get",
        path="/ready",
        name="ready",
        summary="Whether requests are taken; 503 while not.",
        answer=Readiness,
    ),
    Operation(
        method="get",
        path="/status",
        name="status",
        summary="What is served on which devices, and how busy it is.",
        answer=Status,
    ),
    Operation(
        method="get",
        path="/metrics",
        name="metrics",
        summary="Metrics for Prometheus, or OpenMetrics where the header `Accept` asks for it.",
        media=("text/plain", "application/openmetrics-text"),
    ),
    Operation(
        method="get",
        path="/openapi.json",
        name="describe",
        summary="This description.",
    ),
)
