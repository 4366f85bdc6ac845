"""Connections that open and never finish asking are closed; aiohttp alone waits for minutes."""

import asyncio

from aiohttp import web

HEADER_TIMEOUT_S = 10.0


class HeaderDeadline:
    """Counts a connection as silent until its first request's headers are whole.

    Later requests of the same connection fall under the keep-alive timeout.
    """

    def __init__(self, timeout_s: float = HEADER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._silent: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connect(self, server: "web.Server") -> "web.RequestHandler":
        """The protocol of a new connection."""
        protocol = server()
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(self._timeout_s, self._close, protocol)
        return protocol

    def heard(self, protocol: "web.RequestHandler") -> None:
        """A request of this connection is being handled."""
        timer = self._silent.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def _close(self, protocol: "web.RequestHandler") -> None:
        del self._silent[protocol]
        protocol.force_close()
