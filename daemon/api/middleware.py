"""What every request passes through: its id, its origin, and errors in one shape."""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from daemon.api.deadline import HeaderDeadline
from daemon.api.errors import ApiError

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)
_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TEXT_BY_STATUS = {
    404: ("unknown_url", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not take this method"),
    413: ("body_too_large", "the body is larger than this server takes"),
}


class Front:
    """Counts open requests, so that a drain can wait for them."""

    def __init__(self, cors_origins: tuple[str, ...], deadline: HeaderDeadline) -> None:
        self.num_open = 0
        self._deadline = deadline
        self._origins = frozenset(cors_origins)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer, whatever happens; only a cancellation passes through."""
        self._deadline.heard(request.protocol)
        given = request.headers.get("X-Request-Id", "")
        request[REQUEST_ID] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        self.num_open += 1
        try:
            return await self._guarded(request, handler)
        except ApiError as error:
            return _response(error)
        except web.HTTPException as error:
            return _response(_in_shape(error), error.headers.get("Allow"))
        except ConnectionResetError:  # nobody reads this, but aiohttp wants an answer
            return _response(ApiError(499, "the client has gone"))
        except Exception:
            log.exception("request %s failed", request[REQUEST_ID])
            return _response(ApiError(500, "internal error", code="internal_error"))
        finally:
            self.num_open -= 1

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Called before the head of any response is sent."""
        response.headers["Server"] = "llmd"
        response.headers["X-Request-Id"] = request.get(REQUEST_ID, "")
        origin = request.headers.get("Origin")
        if origin is not None and self._allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if origin is None:
            return await handler(request)
        # A web page may send here without asking; only those named in the configuration may.
        if not self._allows(origin):
            raise ApiError(
                403, "this origin is not in server.cors_origins", code="origin_not_allowed"
            )
        if request.method == "OPTIONS":
            return web.Response(
                status=204,
                headers={
                    "Access-Control-Allow-Methods": "GET, POST",
                    "Access-Control-Allow-Headers": "authorization, content-type, x-request-id",
                    "Access-Control-Max-Age": "600",
                },
            )
        return await handler(request)

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins


def _in_shape(error: web.HTTPException) -> ApiError:
    code, message = _TEXT_BY_STATUS.get(error.status, (None, error.reason))
    return ApiError(error.status, message, code=code)


def _response(error: ApiError, allow: str | None = None) -> web.Response:
    headers = error.headers
    if allow:
        headers["Allow"] = allow
    return web.Response(
        body=error.body,
        status=error.status,
        headers=headers,
        content_type="application/json",
    )
