"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import math

import msgspec

from daemon.api.replies.answers import ErrorAnswer, ErrorDetail


class ApiError(Exception):
    """An answer that is not a completion. `status` is HTTP's; `retry_after_s` 0: do not retry."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's `type` of the error."""
        if self.status == 429:
            return "rate_limit_error"
        if self.status == 503:
            return "service_unavailable"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @property
    def body(self) -> bytes:
        """The JSON body."""
        detail = ErrorDetail(self.message, self.kind, self.param, self.code)
        return msgspec.json.encode(ErrorAnswer(detail))

    @property
    def headers(self) -> dict[str, str]:
        """Headers beyond the usual ones."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_after_s <= 0:
            return {}
        wait_ms = math.ceil(1e3 * self.retry_after_s)
        # HTTP has only whole seconds; OpenAI's clients look for milliseconds first.
        return {"Retry-After": str(-(-wait_ms // 1000)), "Retry-After-Ms": str(wait_ms)}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400: the request itself is at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str = "not_ready", retry_after_s: float = 1.0) -> ApiError:
    """A 503: the same request may succeed later."""
    return ApiError(503, message, code=code, retry_after_s=retry_after_s)


_STATUS_BY_KIND = {
    "queue_full": 429,
    "too_long": 400,
    "too_many": 400,
    "unknown_token": 400,
    "draining": 503,
    "not_ready": 503,
}


def rejection(kind: str, message: str, retry_after_s: float, field: str) -> ApiError:
    """The client's error for a `RequestRejected`; `field` is the prompt's field."""
    status = _STATUS_BY_KIND.get(kind, 500)
    if kind == "too_long":
        return invalid(message, field, "context_length_exceeded")
    if kind == "too_many":
        return invalid(message, "n")
    if kind == "unknown_token":
        return invalid(message, field)
    if status == 503:
        retry_after_s = max(1.0, retry_after_s)
    return ApiError(status, message, code=kind, retry_after_s=retry_after_s)


def shown(value: float) -> str:
    """A number for a message; Python refuses to write very long integers."""
    return str(value) if abs(value) < 1e18 else "a number that large"
