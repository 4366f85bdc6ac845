"""Workers that Ray places: each has a proxy, a child process that stands for it on this machine."""

import msgspec

from daemon.supervisor.child import start_child
from daemon.supervisor.spare import StartedWorker, worker_module


class ClusterOrder(msgspec.Struct, frozen=True):
    """The demands of one worker on a Ray cluster."""

    address: str  # of its head, HOST:PORT
    cpus: int  # that the worker needs


async def start_proxy(order: ClusterOrder, device: str) -> StartedWorker:
    """Start the proxy of a worker that will load a model on a device of a node."""
    arguments = ["--address", order.address, "--cpus", str(order.cpus)]
    arguments += ["--worker", worker_module(), "--device", device]
    child, sock = await start_child("daemon.cluster.proxy", arguments)
    return StartedWorker(child, sock, None)
