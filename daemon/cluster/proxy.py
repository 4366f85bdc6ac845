"""A worker's proxy: `python -m daemon.cluster.proxy --fd N --address HOST:PORT --cpus C ...`.

It is a process on the daemon's machine that stands for a worker which Ray places on a node, so that
the daemon speaks to it as to a local one and never loads Ray itself. It waits for the cluster, then
for a node with room, says which node that is (`OnNode`), and passes frames both ways. The worker
ends with it: Ray ends the actors of a process that is gone.
"""

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec

from daemon import __version__
from daemon.base import logs
from daemon.cluster.direct import DirectConnection, connect
from daemon.cluster.host import Begin, Listen, WorkerHost
from daemon.cluster.nodes import join, node_address, node_name
from daemon.protocol.worker import Exited, Failed, FromWorker, Loading, NodeDoor, OnNode
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import encoder
from daemon.wire.frames import FrameReader, inline_frame
from daemon.wire.parent import die_with_parent

log = logging.getLogger(__name__)

RETRY_S = 2.0
"""Interval at which a cluster that does not answer is asked again, and a wait is reported."""


class Proxy:
    """One worker's proxy, from its start to the worker's end."""

    def __init__(self, channel: BlockingChannel, arguments: argparse.Namespace) -> None:
        self._channel = channel
        self._arguments = arguments
        self._encode = encoder().encode

    def serve(self) -> int:
        """Have the worker placed, then pass frames until it ends; the exit status."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the daemon hung up
            self._await_cluster()
            self._live()
        return 0

    def _live(self) -> None:
        """The worker's life on a node; an end that is not its own is told."""
        from ray.exceptions import RayError

        try:
            self._pass(*self._place())
        except (BrokenPipeError, ConnectionResetError):
            raise
        except RayError as error:
            log.warning("%s: %s", type(error).__name__, error)
            self._send(Failed(f"its node is lost ({type(error).__name__})"))
        except Exception as error:
            log.error("the proxy cannot go on", exc_info=error)
            self._send(Failed(f"{type(error).__name__}: {error}"))
            self._send(Exited(1))  # it is no node's fault: another proxy would fail as well

    def _await_cluster(self) -> None:
        """Connect; a head that does not answer is asked again."""
        address, said = self._arguments.address, ""
        self._send(Loading("cluster", 0.0))
        while why := join(address):
            if why != said:
                log.warning("the cluster at %s does not answer: %s", address, why)
            said = why
            time.sleep(RETRY_S)
            self._send(Loading("cluster", 0.0))

    def _place(self) -> tuple[DirectConnection, Any]:
        """A connection to the worker's host, on the node that took it, and Ray's promise of what it
        says of the worker's end.
        """
        import ray
        from ray.util.placement_group import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cpus = self._arguments.cpus
        group = placement_group([{"CPU": cpus}], strategy="STRICT_PACK")
        self._send(Loading("node", 0.0))
        while not group.wait(timeout_seconds=RETRY_S):
            self._send(Loading("node", 0.0))
        actor = ray.remote(WorkerHost).options(
            num_cpus=cpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            max_restarts=0,
            max_task_retries=0,
        )
        host = actor.remote()
        begin = Begin(__version__, self._arguments.worker, self._arguments.device)
        why: bytes = self._answered(host.begin.remote(msgspec.msgpack.encode(begin)))
        (node_id,) = placement_group_table(group)["bundles_to_node_id"].values()
        node = node_name(node_id)
        if why:
            raise RuntimeError(f"{node}: {why.decode()}")
        order = msgspec.msgpack.encode(Listen(node_address(node_id)))
        door = msgspec.msgpack.decode(
            self._answered(host.listen.remote(order)), type=NodeDoor | str
        )
        if isinstance(door, str):
            raise RuntimeError(f"{node}: {door}")
        self._send(OnNode(node, door))
        end = host.serve.remote()
        return self._connected(door, end), end

    def _connected(self, door: NodeDoor, end: Any) -> DirectConnection:
        """A connection to a host that listens. Raises RayError where its node is lost, and
        RuntimeError where the host has not met anybody either.
        """
        try:
            return connect(door)
        except OSError as error:
            self._answered(end)
            said = f"no connection to {door.address} port {door.port}"
            raise RuntimeError(f"{said}: {error}") from error

    def _answered(self, answer: Any) -> Any:
        """An actor's answer; the wait is reported until Ray has started it, on another node
        perhaps.
        """
        import ray

        while not ray.wait([answer], timeout=RETRY_S)[0]:
            self._send(Loading("node", 0.0))
        return ray.get(answer)

    def _pass(self, host: DirectConnection, end: Any) -> None:
        """Pass frames both ways until the worker has ended, or its node is lost."""
        down = threading.Thread(target=self._pass_down, args=(host,), name="down", daemon=True)
        down.start()
        with ThreadPoolExecutor(1) as beside:
            ending = beside.submit(self._end, host, end)
            try:
                pass_up(host.receive, self._channel)
            finally:
                host.close()  # its other end may not know that it is lost
            pass_up(iter([ending.result(), b""]).__next__, self._channel)

    def _end(self, host: DirectConnection, end: Any) -> bytes:
        """The host's report of the end. A lost node may say nothing over a connection."""
        import ray

        try:
            said: bytes = ray.get(end)
        except BaseException:
            host.close()
            raise
        return said

    def _pass_down(self, host: DirectConnection) -> NoReturn:
        """Pass the daemon's frames to the node; the process ends once the daemon hangs up."""
        pass_down(self._channel, host.send)
        logging.shutdown()
        os._exit(0)

    def _send(self, message: FromWorker) -> None:
        self._channel.send(self._encode(message))


def pass_up(take: Callable[[], bytes], channel: BlockingChannel) -> None:
    """Send the daemon what `take` brings of a worker's frames, until it brings none."""
    reader = FrameReader()
    while frames := take():
        reader.feed(frames)
        with contextlib.closing(reader.payloads()) as payloads:
            for payload in payloads:
                channel.send(payload)


def pass_down(channel: BlockingChannel, give: Callable[[bytes], object]) -> None:
    """Give a worker's host the daemon's frames until the daemon hangs up; none where it is gone."""
    while (payload := channel.receive()) is not None:
        with contextlib.suppress(OSError):  # the other direction finds its end
            give(inline_frame(payload))


def main() -> int:
    """Stand for one worker over the inherited socket."""
    parser = argparse.ArgumentParser(prog="daemon.cluster.proxy")
    parser.add_argument("--fd", type=int, required=True, help="the proxy's end of a socketpair")
    parser.add_argument("--address", required=True, help="of the cluster's head, HOST:PORT")
    parser.add_argument("--cpus", type=int, required=True, help="that the worker asks Ray for")
    parser.add_argument("--worker", required=True, help="the module of the worker's process")
    parser.add_argument("--device", default="cpu", help="what the worker is to be ready for")
    arguments = parser.parse_args()
    logs.set_up("proxy")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a daemon asks so where a worker hangs
    die_with_parent(arguments.fd)
    return Proxy(BlockingChannel(socket.socket(fileno=arguments.fd)), arguments).serve()


if __name__ == "__main__":
    exit_status = main()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(exit_status)  # Ray ends the actor of a process that is gone; taking Ray apart is slow
