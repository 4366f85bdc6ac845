"""The node's end of a worker that Ray placed: an actor that hosts the engine's own process.

All arguments and answers are bytes. Frames come and go over a direct connection, as over a local
worker's socket; those for links go to the worker's other socket, and to the relays that take its
links to other nodes. Ray is not imported here; it runs this class in a process of its own on the
node. The worker is an exec'd process like a local one, and ends with the actor's process.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from signal import SIGKILL

import msgspec

from daemon import __version__
from daemon.cluster.direct import DirectConnection, Door
from daemon.cluster.relay import LinkRelays
from daemon.protocol.worker import Exited
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import encoder
from daemon.wire.frames import FrameReader, inline_frame

END_S = 5.0
"""Time for a worker that has hung up to exit."""


class Begin(msgspec.Struct, frozen=True):
    """The order to start a worker's process on a node."""

    version: str  # of llmd where the daemon runs
    module: str  # of the worker
    device: str


class Listen(msgspec.Struct, frozen=True):
    """The order to wait for the proxy, which comes over a direct connection."""

    address: str  # of the node


class WorkerHost:
    """One worker's process: `begin`, `listen`, and `serve` until it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None  # to the worker
        self._channel: BlockingChannel | None = None  # the same
        self._links: socket.socket | None = None  # over which the worker gets its links
        self._door: Door | None = None

    def begin(self, order: bytes) -> bytes:
        """Start the process that a msgpack `Begin` orders; the reason where it does not start."""
        begin = msgspec.msgpack.decode(order, type=Begin)
        if begin.version != __version__:
            return f"llmd is {__version__} there, and {begin.version} here".encode()
        with contextlib.suppress(PermissionError):
            # Ray starts actors with a nice value of 15, which this thread's child would inherit.
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        links, their_links = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, their_links:
            fds = theirs.fileno(), their_links.fileno()
            command = [sys.executable, "-m", begin.module, "--fd", str(fds[0])]
            command += ["--links-fd", str(fds[1]), "--device", begin.device.partition(":")[0]]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                    start_new_session=True,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
            except OSError as error:
                ours.close()
                links.close()
                return f"its process does not start: {error}".encode()
        self._sock, self._channel, self._links = ours, BlockingChannel(ours), links
        return b""

    def listen(self, order: bytes) -> bytes:
        """Listen as a msgpack `Listen` orders; a msgpack `NodeDoor`, or the reason why not."""
        listen = msgspec.msgpack.decode(order, type=Listen)
        try:
            self._door = Door(listen.address)
        except ImportError:
            missing = f"TLS on {listen.address} needs cryptography: pip install 'llmd-server[ray]'"
            return msgspec.msgpack.encode(missing)
        except OSError as error:
            return msgspec.msgpack.encode(f"it cannot listen on {listen.address}: {error}")
        return msgspec.msgpack.encode(self._door.here)

    def serve(self) -> bytes:
        """Pass frames between the worker and the proxy until the worker has ended: `Exited`, as a
        frame. A worker whose proxy does not come, or is gone, is hung up on.
        """
        assert self._door is not None and self._links is not None
        assert self._channel is not None and self._process is not None
        connection = self._door.accept()
        if connection is None:
            self._channel.close()
        else:
            links = LinkRelays(self._door, self._links)
            down = threading.Thread(target=self._pass_down, args=(connection, links), daemon=True)
            down.start()
            self._pass_up(connection)
            connection.close()
            down.join()
            links.close()
        self._door.close()
        self._links.close()
        status = self._end_of(self._process)
        return inline_frame(encoder().encode(Exited(status)))

    def _pass_down(self, connection: DirectConnection, links: LinkRelays) -> None:
        """The proxy's frames to the worker, those for links past its plans."""
        assert self._channel is not None and self._sock is not None
        reader = FrameReader()
        try:
            while data := connection.receive():
                reader.feed(data)
                with contextlib.closing(reader.payloads()) as payloads:
                    for payload in payloads:
                        if not links.take(payload):
                            self._channel.send(payload)
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the worker has ended, which the other direction finds

    def _pass_up(self, connection: DirectConnection) -> None:
        """The worker's frames to the proxy, until it hangs up."""
        assert self._channel is not None
        with contextlib.suppress(OSError):  # the proxy is gone: the worker is hung up on
            while (payload := self._channel.receive()) is not None:
                connection.send(inline_frame(payload))
        while self._channel.receive() is not None:
            pass  # what it says to nobody

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a worker that has hung up; negative: the signal that ended it."""
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return -SIGKILL
