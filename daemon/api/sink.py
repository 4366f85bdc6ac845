"""The way of SSE events to one client: straight into its transport, with a bound.

A task switch and a coroutine for each event would cost more than the event. So events are framed
here and written to the connection's transport at once. Only a client that reads too slowly has
its events kept, for a bounded time.
"""

import asyncio

KEEP_ALIVE = b": keep-alive\n\n"
BUFFER_LIMIT_BYTES = 256 * 1024
STALLED_LIMIT_S = 30.0
RETRY_S = 0.05


class Sink:
    """Takes events from the first token on; they wait until `attach` names the connection."""

    def __init__(self) -> None:
        self.silent_ticks = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._held: list[bytes] | None = []
        self._deadline = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    def attach(self, transport: asyncio.Transport, chunked: bool) -> None:
        """The response's head has been sent: events go to `transport` from now on."""
        self._transport = transport
        self._chunked = chunked
        self._release()

    def write(self, event: bytes) -> None:
        """Send one event, or several. Never waits."""
        if self._held is not None:
            self._held.append(event)
            return
        assert self._transport is not None
        self.silent_ticks = 0
        transport = self._transport
        if transport.is_closing():  # its handler is about to be cancelled
            return
        transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        if transport.get_write_buffer_size() > BUFFER_LIMIT_BYTES:
            self._hold()

    def tick(self, ticks: int) -> None:
        """Called at intervals: send a comment after `ticks` of them without an event."""
        self.silent_ticks += 1
        if self.silent_ticks >= ticks and self._held is None:
            self.write(KEEP_ALIVE)

    async def emptied(self) -> None:
        """Wait until the client's transport has taken every event."""
        if self._held is not None:
            self._emptied = self._loop.create_future()
            await self._emptied

    def close(self) -> None:
        """Nothing more will be sent."""
        if self._retry is not None:
            self._retry.cancel()

    def _hold(self) -> None:
        self._held = []
        self._deadline = self._loop.time() + STALLED_LIMIT_S
        self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() <= BUFFER_LIMIT_BYTES // 2:
            self._release()
        elif self._loop.time() > self._deadline:
            # The connection's loss cancels its handler, and that aborts the request.
            self._transport.abort()
        else:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held:
            self.write(b"".join(held))
        if self._held is None and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)
