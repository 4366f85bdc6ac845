"""A worker's host as a proxy calls it, without Ray between."""

from concurrent.futures import Executor, Future

import msgspec

from daemon import __version__
from daemon.cluster.direct import DirectConnection, connect
from daemon.cluster.host import Begin, Listen, WorkerHost
from daemon.protocol.worker import NodeDoor

TOY = "tests.chaos.worker"


def begun(host: WorkerHost, **fields: str) -> str:
    """Why its worker does not start; empty: it does."""
    begin = msgspec.structs.replace(Begin(__version__, TOY, "cpu"), **fields)
    return host.begin(msgspec.msgpack.encode(begin)).decode()


def door_of(host: WorkerHost) -> NodeDoor:
    """Where a host that has begun lets its proxy in."""
    listen = msgspec.msgpack.encode(Listen("127.0.0.1"))
    return msgspec.msgpack.decode(host.listen(listen), type=NodeDoor)


def connected(
    host: WorkerHost, beside: Executor, door: NodeDoor | None = None
) -> tuple[DirectConnection, "Future[bytes]"]:
    """A connection to a host that has begun, and what it says in the end, on a thread."""
    door = door or door_of(host)
    end = beside.submit(host.serve)
    return connect(door), end
