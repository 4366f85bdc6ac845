"""The control socket: every viewer reads the same immutable snapshot, and none can slow the daemon.

A tick makes one snapshot and one frame for all viewers that are due. A viewer that has not taken
its last frame when the next one is due is cut off; it may connect again. What an operator may
change comes in here too: the policy.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from daemon.control.protocol import (
    FRAME_LIMIT_BYTES,
    ChoosePolicy,
    FromViewer,
    Refused,
    Snapshot,
    Watch,
)
from daemon.scheduler.policies import POLICIES
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameError, FrameReader, inline_frame

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0
MAX_VIEWERS = 64

_SHARE_S = 0.05  # viewers due within this time of each other get the same snapshot
_READ_BYTES = 64 * 1024
logger = logging.getLogger(__name__)


class RefusalError(Exception):
    """A viewer asked for what it cannot have; its text is the answer."""


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

    `snapshot` is called on the loop, at most once each 50 ms, and only while somebody looks.
    `choose_policy` is called on the loop too, with a policy's name; it may raise RefusalError.
    Without it viewers can change nothing.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot],
        choose_policy: Callable[[str], None] | None = None,
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._choose_policy = choose_policy
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._viewers: set[_Viewer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._frame = b""
        self._frame_s = -math.inf
        self._encode = encoder().encode
        self._decode = decoder(FromViewer).decode
        self._someone_due = asyncio.Event()

    async def start(self) -> None:
        """Bind and serve. Raises OSError if another daemon answers there or the path is taken."""
        sock = _bind(self._path)
        self._inode = self._path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._accept, sock=sock)
        self._spawn(self._tick())

    async def close(self) -> None:
        """Stop serving, cut the viewers off and remove the socket file if it is still ours."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, _Viewer(writer)))

    async def _serve(self, reader: asyncio.StreamReader, viewer: _Viewer) -> None:
        """One connection from its first byte to its end."""
        self._viewers.add(viewer)
        try:
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

    async def _converse(self, reader: asyncio.StreamReader, viewer: _Viewer) -> None:
        frames = FrameReader(FRAME_LIMIT_BYTES)
        while data := await reader.read(_READ_BYTES):
            frames.feed(data)
            for payload in frames.payloads():
                self._answer(viewer, payload)
                await viewer.drained()

    def _answer(self, viewer: _Viewer, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RefusalError(f"not understood: {error}") from error
        if isinstance(message, ChoosePolicy):
            self._choose(message.policy)
        if not isinstance(message, Watch):
            viewer.send(self._current_frame())
            return
        if not MIN_INTERVAL_S <= message.interval_s <= MAX_INTERVAL_S:
            raise RefusalError(f"interval_s must be {MIN_INTERVAL_S} .. {MAX_INTERVAL_S}")
        viewer.interval_s = message.interval_s
        viewer.due_s = asyncio.get_running_loop().time()
        self._someone_due.set()

    def _choose(self, policy: str) -> None:
        """Hand the choice on; snapshots from before it are old now."""
        if self._choose_policy is None:
            raise RefusalError("the policy cannot be changed here")
        if policy not in POLICIES:
            raise RefusalError(f"unknown policy {policy[:40]!r}; there are {', '.join(POLICIES)}")
        self._choose_policy(policy)
        self._frame_s = -math.inf

    async def _tick(self) -> None:
        """Give each watching viewer its snapshot when it is due."""
        loop = asyncio.get_running_loop()
        while True:
            self._someone_due.clear()
            next_s = min((viewer.due_s for viewer in self._viewers), default=math.inf)
            wait_s = next_s - loop.time()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._someone_due.wait(), None if wait_s == math.inf else wait_s
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

    def _framed(self, message: Snapshot | Refused) -> bytes:
        payload = self._encode(message)
        if len(payload) > FRAME_LIMIT_BYTES:
            raise RefusalError(f"the snapshot has {len(payload)} bytes")
        return inline_frame(payload)


def _bind(path: Path) -> socket.socket:
    """A socket bound at `path` with mode 0660; it listens only once its mode is set."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        path.chmod(0o660)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove a socket file that a dead daemon left. Raises OSError if it is anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        else:
            raise FileExistsError(f"another daemon answers at {path}")
