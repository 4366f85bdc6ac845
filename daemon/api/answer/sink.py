"""The output of SSE events to one client: straight into its transport, with a bound.

A task switch and a coroutine for each event would cost more than the event. So events are framed
here and written to the connection's transport at once. Events are kept, deflated, only for a client
that reads too slowly: up to a size, and as long as it reads at all.
"""

import asyncio
from collections.abc import Callable

from daemon.api.answer.backlog import Backlog

KEEP_ALIVE = b": keep-alive\n\n"
TRANSPORT_LIMIT_BYTES = 128 * 1024
BACKLOG_LIMIT_BYTES = 128 * 1024
"""Together 256 KiB for a stream. Deflated, the second half holds twenty times as many events."""
RETRY_S = 0.05


class Sink:
    """The sink of one stream. Events wait until `attach` names the connection."""

    def __init__(self, stall_timeout_s: float, on_cut: Callable[[], None]) -> None:
        """`on_cut` is called when a client is cut off that reads too little for too long."""
        self.silent_ticks = 0
        self._stall_timeout_s = stall_timeout_s
        self._on_cut = on_cut
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._early: list[bytes] = []  # before `attach`
        self._backlog: Backlog | None = None
        self._deadline_s = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def attach(self, transport: asyncio.Transport, chunked: bool) -> None:
        """Send events to `transport` from now on: the response's head has been sent."""
        self._transport = transport
        self._chunked = chunked
        if self._early:
            self.write(b"".join(self._early))
            self._early.clear()

    def write(self, event: bytes) -> None:
        """Send one event, or several. Never waits."""
        if self._backlog is not None:
            self._keep(self._backlog, event)
            return
        transport = self._transport
        if transport is None:
            self._early.append(event)
            return
        self.silent_ticks = 0
        if transport.is_closing():  # its handler is about to be cancelled
            return
        transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        if transport.get_write_buffer_size() > TRANSPORT_LIMIT_BYTES:
            self._backlog = Backlog()
            self._progress()
            self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def tick(self, ticks: int) -> None:
        """Send a comment after `ticks` calls without an event; called at intervals."""
        self.silent_ticks += 1
        if self.silent_ticks >= ticks and self._backlog is None:
            self.write(KEEP_ALIVE)

    def probe(self) -> None:
        """Send a comment, unless events wait to be sent."""
        self.tick(1)

    async def emptied(self) -> None:
        """Wait until the client's transport has taken every event."""
        if self._backlog is not None:
            self._emptied = self._loop.create_future()
            await self._emptied

    def close(self) -> None:
        """Send nothing more."""
        if self._retry is not None:
            self._retry.cancel()

    def _keep(self, backlog: Backlog, event: bytes) -> None:
        if backlog.size_bytes + min(len(event), BACKLOG_LIMIT_BYTES) > BACKLOG_LIMIT_BYTES:
            self._cut()
        else:
            backlog.add(event)

    def _try_again(self) -> None:
        transport, backlog = self._transport, self._backlog
        assert transport is not None and backlog is not None
        if transport.is_closing():
            return
        while backlog and transport.get_write_buffer_size() <= TRANSPORT_LIMIT_BYTES // 2:
            events = backlog.pop()
            transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)
            self._progress()
        if not backlog and transport.get_write_buffer_size() <= TRANSPORT_LIMIT_BYTES // 2:
            self._backlog = None
            if self._emptied is not None and not self._emptied.done():
                self._emptied.set_result(None)
        elif self._loop.time() > self._deadline_s:
            self._cut()
        else:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _progress(self) -> None:
        self._deadline_s = self._loop.time() + self._stall_timeout_s

    def _cut(self) -> None:
        # The connection's loss cancels its handler, and that aborts the request.
        if self._transport is not None and not self._transport.is_closing():
            self._on_cut()
            self._transport.abort()
