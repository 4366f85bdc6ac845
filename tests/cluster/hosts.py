"""A worker's host as a proxy calls it, without Ray between."""

from concurrent.futures import Executor, Future

import msgspec

from daemon import __version__
from daemon.cluster.direct import DirectConnection, Listening, connect, new_token
from daemon.cluster.host import Begin, Listen, WorkerHost

TOY = "tests.chaos.worker"


def begun(host: WorkerHost, **fields: str) -> str:
    """Why its worker does not start; empty: it does."""
    begin = msgspec.structs.replace(Begin(__version__, TOY, "cpu"), **fields)
    return host.begin(msgspec.msgpack.encode(begin)).decode()


def connected(host: WorkerHost, beside: Executor) -> tuple[DirectConnection, "Future[bytes]"]:
    """A connection to a host that has begun, and what it says in the end, on a thread."""
    listen = Listen("127.0.0.1", new_token())
    told = msgspec.msgpack.decode(host.listen(msgspec.msgpack.encode(listen)), type=Listening)
    end = beside.submit(host.serve)
    return connect(told, listen.token), end
