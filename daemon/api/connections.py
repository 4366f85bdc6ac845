"""The connections of this process: counted, and no more than it can serve."""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from daemon.api.connection import Connection
from daemon.api.errors import unavailable
from daemon.api.tally import ClientEvent, Tally
from daemon.base.files import raise_descriptor_limit
from daemon.config.schema import ServerConfig

if TYPE_CHECKING:
    from aiohttp.web_server import Server

log = logging.getLogger(__name__)

SPARE_DESCRIPTORS = 64
"""For all that is no connection: the listener, the channel, files being read, refusals."""
MAX_REFUSING = 32
"""Connections that are being told 503; beyond, they are closed without a word."""
REFUSING_S = 1.0
_TOO_MANY = ClientEvent(
    "connections refused: as many as server.max_connections are open",
    "connection refused: as many as server.max_connections are open",
)


class Connections:
    """Makes a protocol for each connection that is accepted."""

    def __init__(self, config: ServerConfig, tally: Tally) -> None:
        self.open: set[Connection] = set()
        self.num_refusing = 0
        self._config = config
        self._tally = tally
        self._limit = min(config.max_connections, raise_descriptor_limit() - SPARE_DESCRIPTORS)
        if self._limit < config.max_connections:
            log.info("descriptors allow %d connections", self._limit)

    def connect(self, server: "Server") -> asyncio.Protocol:
        """The protocol of a new connection."""
        if len(self.open) >= self._limit:
            self._tally.note(_TOO_MANY)
            return _Refusal(self)
        return Connection(server, self._config, self._tally, self.open)


class _Refusal(asyncio.Protocol):
    """Says 503 to whatever was asked. What the client still sends is read for a moment: a
    connection that is closed over unread bytes takes its answer with it.
    """

    def __init__(self, all_of_them: Connections) -> None:
        self._all = all_of_them

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        self._all.num_refusing += 1
        if self._all.num_refusing > MAX_REFUSING:
            wire.abort()
            return
        wire.write(_FULL)
        wire.write_eof()
        asyncio.get_running_loop().call_later(REFUSING_S, wire.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._all.num_refusing -= 1


def _refusal() -> bytes:
    error = unavailable("the server has as many connections as it takes", "too_many_connections")
    head = [
        "HTTP/1.1 503 Service Unavailable",
        "Server: llmd",
        "Content-Type: application/json",
        f"Content-Length: {len(error.body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in error.headers.items()),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + error.body


_FULL = _refusal()
