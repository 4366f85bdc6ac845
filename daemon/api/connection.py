"""One HTTP connection: its deadlines, and answers to what is no HTTP. aiohttp does the rest."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from daemon.api.errors import ApiError
from daemon.api.tally import ClientEvent, Tally
from daemon.config.schema import ServerConfig

if TYPE_CHECKING:
    from aiohttp.web_server import Server

LINGER_S = 2.0
"""After a refusal the rest of a body is read for so long, so that the client sees the refusal."""
LEAST_PROGRESS_BYTES = 16 * 1024
"""A client that takes less of its answer than this in `stall_timeout_s` is cut."""
LOOKS = 4
"""So often in `stall_timeout_s` what is unsent is looked at."""
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
"""So often it is tried whether a client that sends nothing more is still there."""
_A_MOMENT_S = 0.05
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_KERNEL_PROBE_S = 10
"""So often the kernel tries the same for itself."""
_TCP_CLOSE = 7
"""Linux's state of a connection that the other side has reset."""


class Connection(web.RequestHandler):
    """Closed when headers take longer than `header_timeout_s`, when it idles between requests
    longer than `idle_timeout_s`, and when a whole answer waits and is not taken.

    A header that comes after a request falls under its own deadline from its first byte on.

    A client that will send nothing more (`shutdown`) may still wait for its answer, or be gone: TCP
    says the same of both. Only what is sent tells: one that is gone resets the connection. So now
    and then something is sent that means nothing: what `probe` sends, or before an answer has begun
    an interim answer, of which HTTP/1.1 allows any number. An older client is taken to be there
    until the kernel knows better: its probes are reset as soon as the other side's kernel has
    forgotten the connection, on Linux after a minute.
    """

    def __init__(
        self,
        server: "Server",
        config: ServerConfig,
        tally: Tally,
        all_open: "set[Connection]",
    ) -> None:
        """`all_open`: this one is among them while it is open."""
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=config.idle_timeout_s,
            access_log=None,  # type: ignore[arg-type]  # a logger by its type, optional by its code
            lingering_time=LINGER_S,
            auto_decompress=False,  # `body.py` refuses what is compressed
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
        self._heard_all = False  # the client sends nothing more
        self._probing: asyncio.TimerHandle | None = None
        self._silent: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._num_unsent = 0
        self._stalled_at_s = 0.0

    def begin(self, request: web.BaseRequest) -> None:
        """A request's headers are whole: it is being handled."""
        self._busy = True
        self._request = request
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def end(self) -> None:
        """The request was handled; its answer may still be on its way."""
        self._busy = False
        self._request = self.probe = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first request's headers."""
        self._all_open.add(self)
        self._wire = cast(asyncio.Transport, transport)  # uvloop's inherit from nothing
        self._await_headers()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Part of a request; with the first bytes of one its deadline begins."""
        if not self._busy and self._silent is None:
            self._await_headers()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's closes by saying nothing
        """The client sends nothing more; whether the connection stays open for an answer."""
        if self._busy and self._request is not None and not self._request.content.is_eof():
            return False  # what it was about to ask will never be whole
        self._heard_all = True
        self._let_kernel_probe()
        # Requests that came with the end begin to be handled in a moment.
        self._settle_in(_A_MOMENT_S, self._end_or_probe)
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
        """Send what is left of an answer; whoever does not take it is cut."""
        if self._looking is None and self._wire is not None:
            self._num_unsent = 0
            self._look_soon()
        sent = await super().finish_response(request, resp, start_time)
        if self._heard_all:
            self._settle_in(_A_MOMENT_S, self._end_or_probe)
        return sent

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """What aiohttp has to say of a connection; of one that is lost, no line of its own."""
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
        """The answer to what aiohttp could not parse: in our shape, with nothing of it."""
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
        self._silent = self._clock.call_later(self._header_timeout_s, self._hear_once_more)

    def _hear_once_more(self) -> None:
        """What came while this process was busy is read before a client is called slow."""
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

    def _end_or_probe(self) -> None:
        """The client sends nothing more: where it waits for nothing, the connection is done with.

        Most answers are there before the client is tried at all.
        """
        if self._wire is None or self._wire.is_closing():
            return
        if self._busy or self._wire.get_write_buffer_size():
            self._settle_in(PROBE_S, self._try_client)
        else:
            self._wire.close()

    def _try_client(self) -> None:
        """Is it still there?"""
        assert self._wire is not None
        if self._is_reset():
            self._wire.abort()
            return
        if self.probe is not None:
            self.probe()
        elif self._request is not None and self._request.version >= (1, 1):
            self._wire.write(b"" if self._request.writer.output_size else _INTERIM)
        self._end_or_probe()

    def _let_kernel_probe(self) -> None:
        sock = self._wire.get_extra_info("socket") if self._wire is not None else None
        if sock is None or not hasattr(socket, "TCP_KEEPIDLE"):
            return
        with suppress(OSError):  # no TCP, or gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KERNEL_PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KERNEL_PROBE_S)

    def _is_reset(self) -> bool:
        """Whether the kernel has heard that nobody is there; it tells readers, who have stopped."""
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
        """Between two looks nothing is written but whole answers, so that less unsent is progress;
        while a request is being handled its own events are written, and `sink.py` looks after it.
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
