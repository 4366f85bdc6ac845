"""The control socket: every viewer reads the same immutable snapshot, and none can slow the daemon.

A tick makes one snapshot and one frame for all viewers that are due. A viewer that has not taken
its last frame when the next one is due is cut off; it may connect again. An operator's orders
arrive here too.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.control.orders import RefusalError, carry_out
from daemon.control.place import SocketPlace
from daemon.protocol.control import (
    FRAME_LIMIT_BYTES,
    BlockOwners,
    Closer,
    FromViewer,
    Order,
    Refused,
    Snapshot,
    Story,
    ToViewer,
    Watch,
)
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameError, FrameReader, inline_frame

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0
MAX_VIEWERS = 64

_SHARE_S = 0.05  # viewers due within this time of each other get the same snapshot
_READ_BYTES = 64 * 1024
logger = logging.getLogger(__name__)


_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59  # Linux's number; Python has no name for it
_GROUPS_BYTES = 1024  # the most that Python reads, 256 groups


class Peer(NamedTuple):
    """A process as it was when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]  # its group and its supplementary ones, as far as they are known


def peer_of(sock: socket.socket) -> Peer:
    """The process at the other end of a Unix socket, as the kernel reports it. Raises OSError.

    The socket's mode says who may connect, too. But a mode can be changed, and a folder above it
    opened, long after the daemon has bound it; the kernel's report of a connection cannot.
    """
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit, or a kernel without the option
        groups = b""
    return Peer(pid, uid, frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)}))


def may_ask(peer: Peer, uid: int, gid: int) -> bool:
    """Whether a peer may use a socket of this user and group: the user, the group, and root."""
    return peer.uid in (0, uid) or gid in peer.gids


class _Viewer:
    """One connection; `due_s` is the loop's time of its next snapshot."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.interval_s = 0.0
        self.due_s = math.inf
        self._writer = writer
        # Every byte that the socket did not take counts as a frame still waiting.
        writer.transport.set_write_buffer_limits(high=0)

    def send(self, frame: bytes) -> None:
        """Write one frame, unless the last one still waits: then cut the viewer off."""
        if self._writer.transport.get_write_buffer_size():
            self.due_s = math.inf
            self._writer.transport.abort()
        else:
            self._writer.write(frame)

    async def drained(self) -> None:
        """Wait until the viewer has taken everything."""
        await self._writer.drain()

    def close(self) -> None:
        """Close; what the socket has taken is still delivered."""
        self._writer.close()


class ControlServer:
    """Serves `snapshot()` on the Unix socket `path` (mode 0660), on the running event loop.

    `snapshot` is called on the loop, at most once each 50 ms, and only while a viewer looks. The
    socket's user and group, and root, may ask. `operator` has the methods of ORDERS; without it
    nothing can be changed. `look_closer` answers questions beyond the snapshot, once each 50 ms for
    the same question; it may raise RefusalError. `makes_folder` is SocketPlace's.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot],
        operator: object | None = None,
        look_closer: Callable[[Closer], Story | BlockOwners] | None = None,
        *,
        makes_folder: bool = False,
    ) -> None:
        self._place = SocketPlace(path, makes_folder=makes_folder)
        self._gid = -1
        self._snapshot = snapshot
        self._operator = operator
        self._look_closer = look_closer
        self._server: asyncio.Server | None = None
        self._viewers: set[_Viewer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frame = b""
        self._frame_s = -math.inf
        self._closer_frames: dict[Closer, bytes] = {}
        self._closer_s = -math.inf
        self._encode = encoder().encode
        self._decode = decoder(FromViewer).decode
        self._viewer_due = asyncio.Event()

    async def start(self) -> None:
        """Bind and serve. Raises OSError if another daemon lives there or the path is taken."""
        sock = self._place.take()
        self._gid = os.stat(sock.getsockname()).st_gid
        self._server = await asyncio.start_unix_server(self._accept, sock=sock)
        self._spawn(self._tick())

    async def close(self) -> None:
        """Stop serving, cut the viewers off and give the place back."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._place.give_back()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its first byte to its end."""
        viewer = _Viewer(writer)
        self._viewers.add(viewer)
        try:
            self._check(peer_of(writer.get_extra_info("socket")))
            if len(self._viewers) > MAX_VIEWERS:
                raise RefusalError(f"more than {MAX_VIEWERS} viewers")
            await self._converse(reader, viewer)
        except ConnectionError:
            pass
        except (RefusalError, FrameError) as error:
            viewer.send(self._framed(Refused(str(error))))
        except Exception:
            logger.exception("the control socket could not answer")
            viewer.send(self._framed(Refused("internal error")))
        finally:
            self._viewers.discard(viewer)
            viewer.close()

    def _check(self, peer: Peer) -> None:
        if not may_ask(peer, os.getuid(), self._gid):
            logger.warning("user %d (process %d) may not ask here", peer.uid, peer.pid)
            raise RefusalError("only this daemon's user, its group and root may ask")

    async def _converse(self, reader: asyncio.StreamReader, viewer: _Viewer) -> None:
        frames = FrameReader(FRAME_LIMIT_BYTES)
        while data := await reader.read(_READ_BYTES):
            frames.feed(data)
            for payload in frames.payloads():
                await self._answer(viewer, payload)
                await viewer.drained()

    async def _answer(self, viewer: _Viewer, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RefusalError(f"not understood: {error}") from error
        if isinstance(message, Closer):
            viewer.send(self._closer_frame(message))
            return
        if isinstance(message, Order):
            viewer.send(await self._order_answer(message))
            return
        if not isinstance(message, Watch):
            viewer.send(self._current_frame())
            return
        if not MIN_INTERVAL_S <= message.interval_s <= MAX_INTERVAL_S:
            raise RefusalError(f"interval_s must be {MIN_INTERVAL_S} .. {MAX_INTERVAL_S}")
        viewer.interval_s = message.interval_s
        viewer.due_s = asyncio.get_running_loop().time()
        self._viewer_due.set()

    async def _order_answer(self, order: Order) -> bytes:
        """Carry an order out; its answer's frame. Earlier snapshots are outdated then."""
        if self._operator is None:
            raise RefusalError("nothing can be changed here")
        self._frame_s = -math.inf
        answer = await carry_out(self._operator, order)
        self._frame_s = -math.inf
        return self._current_frame() if answer is None else self._framed(answer)

    async def _tick(self) -> None:
        """Give each watching viewer its snapshot when it is due."""
        loop = asyncio.get_running_loop()
        while True:
            self._viewer_due.clear()
            next_s = min((viewer.due_s for viewer in self._viewers), default=math.inf)
            wait_s = next_s - loop.time()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._viewer_due.wait(), None if wait_s == math.inf else wait_s
                    )
                continue
            self._deliver(loop.time())

    def _deliver(self, now_s: float) -> None:
        due = [viewer for viewer in self._viewers if viewer.due_s <= now_s + _SHARE_S]
        try:
            frame = self._current_frame()
        except Exception:
            logger.exception("no snapshot could be made")
            frame = self._framed(Refused("internal error"))
        for viewer in due:
            viewer.due_s = now_s + viewer.interval_s
            viewer.send(frame)

    def _current_frame(self) -> bytes:
        """The newest snapshot's frame, made anew if it is older than `_SHARE_S`."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._frame_s > _SHARE_S:
            self._frame, self._frame_s = self._framed(self._snapshot()), now_s
        return self._frame

    def _closer_frame(self, question: Closer) -> bytes:
        """The answer's frame, made anew if it is older than `_SHARE_S`."""
        if self._look_closer is None:
            raise RefusalError("stories and owners are not known here")
        now_s = asyncio.get_running_loop().time()
        if now_s - self._closer_s > _SHARE_S:
            self._closer_frames.clear()
            self._closer_s = now_s
        if question not in self._closer_frames:
            self._closer_frames[question] = self._framed(self._look_closer(question))
        return self._closer_frames[question]

    def _framed(self, message: ToViewer) -> bytes:
        payload = self._encode(message)
        if len(payload) > FRAME_LIMIT_BYTES:
            raise RefusalError(f"the answer has {len(payload)} bytes")
        return inline_frame(payload)
