"""The middleware of every request: admission before any route, and headers of every answer."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from daemon.api.http.account import Account
from daemon.api.http.connection import Connection
from daemon.api.http.hosts import Hosts
from daemon.api.http.keyring import Keyring
from daemon.api.http.tally import ClientEvent, Tally
from daemon.api.openapi.operations import OPERATIONS
from daemon.api.replies.elsewhere import nothing_here
from daemon.api.replies.errors import ApiError
from daemon.api.request_id import current

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)
ARRIVED_S = web.RequestKey("arrived_s", float)
"""When the request's headers were whole, in monotonic seconds."""
ACCOUNT = web.RequestKey("account", Account)
"""The account of the request's key; missing where no keys are configured."""
OPEN_PATHS = frozenset({"/health", "/ping", "/ready"})
"""Paths for load balancers; they reveal nothing about models and clients."""
LEFT = ClientEvent(
    "clients left before their answers were complete", "client left before its answer was complete"
)

PATHS = frozenset(operation.path for operation in OPERATIONS)

_GOOD_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TEXT_BY_STATUS = {
    413: ("body_too_large", "the body is larger than this server takes"),
    417: ("expectation_failed", "the header `Expect` may only be 100-continue"),
}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "authorization, content-type, x-request-id",
    "Access-Control-Max-Age": "600",
}


class Front:
    """Admits or refuses requests, before they are routed and before a body is read.

    It checks in this order: the host's name, a web page's origin, the API key, its quota. It also
    counts open requests, so that a drain can wait for them, and gives errors one shape.
    """

    def __init__(
        self,
        hosts: Hosts,
        keys: Keyring,
        tally: Tally,
        count: Callable[[ApiError], None],
        page: str = "",
        uncounted: Sequence[str] = (),
    ) -> None:
        """`count` is called for every error that is answered; `page` is the path of the server's
        own web page, if it has one: it needs no key, and may use the server that it came from.
        Requests to `uncounted` paths use no model and are not charged to a key.
        """
        self.num_open = 0
        self._hosts = hosts
        self._keys = keys
        self._tally = tally
        self._count = count
        self._origins: frozenset[str] = frozenset()
        self._open_paths = OPEN_PATHS | {page} if page else OPEN_PATHS
        self._has_page = bool(page)
        self._uncounted = frozenset(uncounted)

    def allow(self, cors_origins: Sequence[str], allowed_hosts: Sequence[str]) -> None:
        """Set the origins of web pages that are admitted (`*`: all), and the host names that the
        server answers to beside its own.
        """
        self._origins = frozenset(cors_origins)
        self._hosts.allow(allowed_hosts)

    def around(self, handler: Handler) -> Handler:
        """Wrap `handler`, which is aiohttp's router and everything behind it."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            assert isinstance(request, web.Request)
            return await self._handle(request, handler)

        return handle

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add our headers; called before the head of any response is sent."""
        response.headers["Server"] = "llmd"
        response.headers["X-Request-Id"] = request.get(REQUEST_ID, "")
        origin = request.headers.get("Origin")
        if origin is not None and self._allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"

    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer in any case; only a cancellation passes through."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin(request)
        given = request.headers.get("X-Request-Id", "")
        request[REQUEST_ID] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        request[ARRIVED_S] = time.monotonic()
        current.set(request[REQUEST_ID])
        self.num_open += 1
        try:
            refusal = self._refusal(request)
            if refusal is not None:  # aiohttp calls `add_headers` only for what it has routed
                await self.add_headers(request, refusal)
                return refusal
            return await self._routed(request, handler)
        except asyncio.CancelledError:
            self._tally.note(LEFT)
            raise
        finally:
            self.num_open -= 1
            connection.end()

    def _refusal(self, request: web.Request) -> web.Response | None:
        """The answer to a request that is not routed; None: it is admitted."""
        try:
            for host in request.headers.getall("Host", [None]):
                self._hosts.check(host)
            origin = request.headers.get("Origin")
            # Browsers let any web page send here; only configured origins are admitted.
            if origin is not None and not self._allows(origin):
                self._check_own(request, origin)
            if origin is not None and request.method == "OPTIONS":
                return web.Response(status=204, headers=_PREFLIGHT)
            if not self._is_open(request):
                self._identify(request)
        except ApiError as error:
            what = f"refused: {error.code}"
            self._tally.note(ClientEvent(f"requests {what}", f"request {what}"))
            return self._response(error)
        return None

    def _identify(self, request: web.Request) -> None:
        account = self._keys.admit(request.headers.getall("Authorization", []))
        if account is not None:
            request[ACCOUNT] = account
            if request.method == "POST" and request.path not in self._uncounted:
                account.charge_request()

    async def _routed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return self._response(error)
        except web.HTTPException as error:
            return self._response(_in_shape(error, request), error.headers.get("Allow"))
        except ConnectionResetError:  # the client has gone, but aiohttp wants an answer
            self._tally.note(LEFT)
            return web.Response(status=499)
        except Exception:
            log.exception("a request failed")
            if request.writer.output_size:  # an answer has begun: it can only be ended
                raise
            return self._response(ApiError(500, "internal error", code="internal_error"))

    def _response(self, error: ApiError, allow: str | None = None) -> web.Response:
        self._count(error)
        headers = error.headers
        if allow:
            headers["Allow"] = allow
        return web.Response(
            body=error.body,
            status=error.status,
            headers=headers,
            content_type="application/json",
        )

    def _check_own(self, request: web.Request, origin: str) -> None:
        """Raise ApiError 403 unless the origin is this server itself, as that of its own page.

        A foreign page whose name was made to point here looks the same; but it has no key, and its
        name is not surely ours.
        """
        host = request.headers.get("Host", "")
        if not (self._has_page and origin in {f"http://{host}", f"https://{host}"}):
            message = "this origin is not in server.cors_origins"
            raise ApiError(403, message, code="origin_not_allowed")
        if not (self._keys.needs_key or self._hosts.is_sure(host)):
            message = (
                "a web page of this host name may ask once the name is in server.allowed_hosts, "
                "or once there are API keys"
            )
            raise ApiError(403, message, code="origin_not_allowed")

    def _is_open(self, request: web.Request) -> bool:
        """Whether no key is needed. The raw path is compared: an encoded one is not open."""
        path = request.raw_path.partition("?")[0]
        return request.method in {"GET", "HEAD"} and path in self._open_paths

    def _allows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins


def owner_of(request: web.Request) -> str:
    """The owner of a request, for fair queues: its key's name, or its address."""
    account = request.get(ACCOUNT)
    return account.key.name if account is not None else request.remote or ""


def _in_shape(error: web.HTTPException, request: web.Request) -> ApiError:
    if error.status == 404:
        return nothing_here(request.path, PATHS)
    if error.status == 405:
        takes = error.headers.get("Allow", "other methods").replace(",", " and ")
        what = f"this address takes {takes}"
        return ApiError(405, f"{what}, not {request.method}", code="method_not_allowed")
    code, message = _TEXT_BY_STATUS.get(error.status, (None, error.reason))
    return ApiError(error.status, message, code=code)
