"""The table of operations: each path with its body and answers.

A test compares it with the routes of the running server.
"""

import msgspec

from daemon.api.replies.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Detokenized,
    Health,
    ModelCard,
    ModelList,
    Readiness,
    StatusAnswer,
    Tokenized,
    Version,
)
from daemon.api.request.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

EVERYWHERE = {
    400: "The request is at fault; `param` names the field.",
    401: "An API key is needed, and this one is not valid or missing.",
    403: "This host name or origin is not allowed by the configuration.",
    500: "The server is at fault.",
    503: "The server is starting, leaving, or has too many connections.",
}
NO_MODEL = {404: "No model of this name is served."}
WITH_BODY = NO_MODEL | {
    408: "The body did not come in time.",
    413: "The body is larger than `server.body_limit_bytes`.",
    415: "The body is compressed.",
    429: "A quota is used up, or too many answers are under way.",
}


class Operation(msgspec.Struct, frozen=True):
    """A method of a path."""

    path: str
    name: str  # the operationId
    summary: str
    answer: type | None = None  # JSON; None: text or JSON that no type describes
    body: type | None = None  # JSON
    event: type | None = None  # of a streamed answer
    errors: dict[int, str] = {}  # beyond EVERYWHERE
    media: tuple[str, ...] = ("application/json",)  # of the answer
    parameters: tuple[str, ...] = ()  # in the path

    @property
    def method(self) -> str:
        """The HTTP method: POST with a body, else GET."""
        return "get" if self.body is None else "post"


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        name="createChatCompletion",
        summary="What the assistant says next.",
        answer=ChatCompletion,
        body=ChatRequest,
        event=ChatChunk,
        errors=WITH_BODY,
    ),
    Operation(
        path="/v1/completions",
        name="createCompletion",
        summary="How a text goes on.",
        answer=Completion,
        body=CompletionRequest,
        event=CompletionChunk,
        errors=WITH_BODY,
    ),
    *(
        Operation(f"{root}/{verb}", f"{verb}{suffix}", summary, answer, body, errors=WITH_BODY)
        for root, suffix in (("/v1", ""), ("", "AtRoot"))
        for verb, summary, body, answer in (
            ("tokenize", "The tokens of a text or conversation.", TokenizeRequest, Tokenized),
            ("detokenize", "The text of tokens.", DetokenizeRequest, Detokenized),
        )
    ),
    Operation("/v1/models", "listModels", "The model that is served.", ModelList),
    Operation("/v1/models/", "listModelsAtSlash", "The model that is served.", ModelList),
    Operation(
        "/v1/models/{id}",
        "retrieveModel",
        "The model of this name.",
        ModelCard,
        errors=NO_MODEL,
        parameters=("id",),
    ),
    *(
        Operation(
            f"/{name}",
            name,
            "Whether answers make progress, and when the last step was; 503 if not.",
            Health,
        )
        for name in ("health", "ping")
    ),
    Operation("/version", "version", "The version of llmd.", Version),
    Operation("/ready", "ready", "Whether requests are taken; 503 while not.", Readiness),
    Operation(
        "/status", "status", "What is served on which devices, and how busy it is.", StatusAnswer
    ),
    Operation(
        "/metrics",
        "metrics",
        "Metrics for Prometheus, or OpenMetrics where the header `Accept` asks for it.",
        media=("text/plain", "application/openmetrics-text"),
    ),
    Operation("/openapi.json", "describe", "This description."),
)
