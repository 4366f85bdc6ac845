"""The connections of this process: counted, and no more than it can serve."""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from daemon.api.http.connection import Connection
from daemon.api.http.tally import ClientEvent, Tally
from daemon.api.replies.errors import unavailable
from daemon.base.files import raise_descriptor_limit
from daemon.config.schema import ServerConfig

if TYPE_CHECKING:
    from aiohttp.web_server import Server

log = logging.getLogger(__name__)

SPARE_DESCRIPTORS = 64
"""Descriptors beside those of connections: the listener, the channel, files, refusals."""
MAX_REFUSING = 32
"""Connections being answered 503 at a time; further ones are closed without an answer."""
REFUSING_S = 1.0
_TOO_MANY = ClientEvent(
    "connections refused: as many as server.max_connections are open",
    "connection refused: as many as server.max_connections are open",
)


class Connections:
    """The open connections, and the factory of their protocols."""

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
    """Answers 503 to any request. What the client still sends is read for a moment: closing over
    unread bytes would reset the connection and lose the answer.
    """

    def __init__(self, connections: Connections) -> None:
        self._all = connections

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
