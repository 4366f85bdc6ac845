"""One HTTP connection: its deadlines, and answers to invalid HTTP. aiohttp does the rest."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from daemon.api.http.tally import ClientEvent, Tally
from daemon.api.replies.errors import ApiError
from daemon.config.schema import ServerConfig

if TYPE_CHECKING:
    from aiohttp.web_server import Server

LINGER_S = 2.0
"""Time to read the rest of a body after a refusal, so that the client sees the refusal."""
LEAST_PROGRESS_BYTES = 16 * 1024
"""A client that reads less of its answer than this in `stall_timeout_s` is cut off."""
LOOKS = 4
"""Checks of the unsent bytes in each `stall_timeout_s`."""
CUT = ClientEvent(
    "clients cut that did not take their answers", "client cut that did not take its answer"
)
_LEFT_REFUSED = ClientEvent(
    "clients left while they were being refused", "client left while it was being refused"
)
_NO_HTTP = ClientEvent("requests that are no HTTP", "request that is no HTTP")
_NO_HEADERS = ClientEvent(
    "connections closed whose headers did not come", "connection closed whose headers did not come"
)
PROBE_S = 1.0
"""Time between two probes of a client that sends nothing more."""
_A_MOMENT_S = 0.05
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_KERNEL_PROBE_S = 10
"""Time between the kernel's own probes."""
_TCP_CLOSE = 7
"""Linux's state of a connection that the other side has reset."""


class Connection(web.RequestHandler):
    """One connection. It is closed when headers take longer than `header_timeout_s`, when it idles
    between requests longer than `idle_timeout_s`, and when a whole answer waits unread.

    The headers of a further request have a deadline of their own from their first byte on.

    A client that will send nothing more (`shutdown`) may still wait for its answer, or be gone: TCP
    does not distinguish the two. Only sending shows it: a client that is gone resets the
    connection. So at times something without meaning is sent: the `probe`, or before an answer has
    begun an interim answer, of which HTTP/1.1 allows any number. An HTTP/1.0 client counts as
    connected until the kernel knows better: its probes are reset as soon as the other side's
    kernel has forgotten the connection, on Linux after a minute.
    """

    def __init__(
        self,
        server: "Server",
        config: ServerConfig,
        tally: Tally,
        all_open: "set[Connection]",
    ) -> None:
        """`all_open` holds this connection while it is open."""
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=config.idle_timeout_s,
            access_log=None,  # type: ignore[arg-type]  # a logger by its type, optional by its code
            lingering_time=LINGER_S,
            auto_decompress=False,  # `body.py` refuses compressed bodies
        )
        self._header_timeout_s = config.header_timeout_s
        self._stall_timeout_s = config.stall_timeout_s
        self._tally = tally
        self._all_open = all_open
        self._clock = loop
        self._wire: asyncio.Transport | None = None
        self.probe: Callable[[], None] | None = None
        self._request: web.BaseRequest | None = None
        self._busy = False
        self._got_all = False  # the client sends nothing more
        self._probing: asyncio.TimerHandle | None = None
        self._silent: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._num_unsent = 0
        self._stalled_at_s = 0.0

    def begin(self, request: web.BaseRequest) -> None:
        """Begin with a request whose headers are complete."""
        self._busy = True
        self._request = request
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def end(self) -> None:
        """End with a request; its answer may still be on its way."""
        self._busy = False
        self._request = self.probe = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first request's headers."""
        self._all_open.add(self)
        self._wire = cast(asyncio.Transport, transport)  # uvloop's inherit from nothing
        self._await_headers()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Take part of a request; its first bytes start its deadline."""
        if not self._busy and self._silent is None:
            self._await_headers()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's closes by returning None
        """The client sends nothing more; return whether the connection stays open for an answer."""
        if self._busy and self._request is not None and not self._request.content.is_eof():
            return False  # the request will never be complete
        self._got_all = True
        self._let_kernel_probe()
        # Requests that came with the end begin to be handled in a moment.
        self._settle_in(_A_MOMENT_S, self._close_or_probe)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop every deadline."""
        self._all_open.discard(self)
        for timer in (self._silent, self._looking, self._probing):
            if timer is not None:
                timer.cancel()
        self._wire = None
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer; a client that does not read it is cut off."""
        if self._looking is None and self._wire is not None:
            self._num_unsent = 0
            self._look_soon()
        sent = await super().finish_response(request, resp, start_time)
        if self._got_all:
            self._settle_in(_A_MOMENT_S, self._close_or_probe)
        return sent

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log aiohttp's message; those of lost connections are only counted."""
        if self.transport is None:
            self._tally.note(_LEFT_REFUSED)
        else:
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that aiohttp could not parse: in our shape, quoting nothing."""
        if request.writer.output_size:
            raise ConnectionResetError("an answer has begun already")
        self._tally.note(_NO_HTTP)
        error = ApiError(status, "this is not a valid HTTP request", code="invalid_http")
        response = web.Response(
            status=status,
            body=error.body,
            content_type="application/json",
            headers={"Server": "llmd"},
        )
        response.force_close()
        return response

    def _await_headers(self) -> None:
        self._silent = self._clock.call_later(self._header_timeout_s, self._read_once_more)

    def _read_once_more(self) -> None:
        """Read data that came while this process was busy before calling a client slow."""
        self._silent = self._clock.call_later(_A_MOMENT_S, self._too_slow)

    def _too_slow(self) -> None:
        self._silent = None
        if not self._busy:
            self._tally.note(_NO_HEADERS)
            self.force_close()

    def _settle_in(self, wait_s: float, settle: Callable[[], None]) -> None:
        if self._probing is not None:
            self._probing.cancel()
        self._probing = self._clock.call_later(wait_s, settle)

    def _close_or_probe(self) -> None:
        """Close the connection of a client that sends nothing more, unless it waits for an answer.

        Most answers are complete before the client is probed at all.
        """
        if self._wire is None or self._wire.is_closing():
            return
        if self._busy or self._wire.get_write_buffer_size():
            self._settle_in(PROBE_S, self._probe_client)
        else:
            self._wire.close()

    def _probe_client(self) -> None:
        """Probe whether the client is still connected."""
        assert self._wire is not None
        if self._is_reset():
            self._wire.abort()
            return
        if self.probe is not None:
            self.probe()
        elif self._request is not None and self._request.version >= (1, 1):
            self._wire.write(b"" if self._request.writer.output_size else _INTERIM)
        self._close_or_probe()

    def _let_kernel_probe(self) -> None:
        sock = self._wire.get_extra_info("socket") if self._wire is not None else None
        if sock is None or not hasattr(socket, "TCP_KEEPIDLE"):
            return
        with suppress(OSError):  # no TCP, or gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KERNEL_PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KERNEL_PROBE_S)

    def _is_reset(self) -> bool:
        """Whether the kernel saw a reset, of which it tells only readers, and we have stopped."""
        assert self._wire is not None
        sock = self._wire.get_extra_info("socket")
        if sock is None or not hasattr(socket, "TCP_INFO"):
            return False
        try:
            state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return False  # no TCP
        return state[0] == _TCP_CLOSE

    def _look_soon(self) -> None:
        self._looking = self._clock.call_later(self._stall_timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        """Check that the client reads. Between two checks only whole answers are written, so that
        fewer unsent bytes mean progress; a streamed answer is watched by `sink.py`.
        """
        self._looking = None
        if self._wire is None or self._busy:
            return
        num_unsent = self._wire.get_write_buffer_size()
        if not num_unsent:
            return
        now = self._clock.time()
        if not self._num_unsent or self._num_unsent - num_unsent >= LEAST_PROGRESS_BYTES:
            self._num_unsent = num_unsent
            self._stalled_at_s = now + self._stall_timeout_s
        if now >= self._stalled_at_s:
            self._tally.note(CUT)
            self._wire.abort()
        else:
            self._look_soon()
