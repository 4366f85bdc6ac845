"""llmd-powerd's loop: connections, their questions and answers, all of them bounded.

One thread serves all of them. A connection that does not read its answers is not read either.
"""

import contextlib
import itertools
import logging
import math
import selectors
import socket
import time
from collections.abc import Sequence

from daemon.base import notify
from daemon.powerd.frames import (
    FRAME_LIMIT_BYTES,
    LeaseCap,
    PowerAnswer,
    PowerError,
    frame,
    question_of,
    refusal,
)
from daemon.powerd.keeper import PowerKeeper

MOST_CONNECTIONS = 16
ANSWERS_BYTES = 16 * 1024
"""Bytes of unread answers after which a connection's questions are no longer answered."""
RETRY_S = 2.0
"""Interval at which failed changes, and accepting after a lack of descriptors, are retried."""

log = logging.getLogger(__name__)


class PowerWatchdog:
    """Fed at most twice in the interval that the service manager has asked for."""

    def __init__(self) -> None:
        self._interval_s = notify.watchdog_s() / 2
        self.due_s = 0.0 if self._interval_s else math.inf
        """The time to feed it again, by the monotonic clock."""

    def feed(self) -> None:
        """Called once per loop; costs nothing before it is due."""
        if (now := time.monotonic()) >= self.due_s:
            notify.alive()
            self.due_s = now + self._interval_s


class PowerPeer:
    """One connection: its number, its unfinished input line, and its unsent output."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.number = number
        self.received = bytearray()
        self.answers = bytearray()

    @property
    def asks(self) -> bool:
        """Whether there is a question to answer, or one that is too long."""
        return b"\n" in self.received or len(self.received) >= FRAME_LIMIT_BYTES

    def next_line(self) -> bytes | None:
        """The next whole line, or None. Raises PowerError where it is too long."""
        length = self.received.find(b"\n")
        without_end = len(self.received) if length < 0 else length
        if without_end >= FRAME_LIMIT_BYTES:
            raise PowerError(f"a question has at most {FRAME_LIMIT_BYTES} bytes")
        if length < 0:
            return None
        line = bytes(self.received[:length])
        del self.received[: length + 1]
        return line

    def flush(self) -> None:
        """Send as much as the other side takes. Raises OSError where it is gone."""
        with contextlib.suppress(BlockingIOError):
            while self.answers:
                del self.answers[: self.sock.send(self.answers)]


class PowerServer:
    """Answers all connections until it is told to stop."""

    def __init__(self, keeper: PowerKeeper, listener: socket.socket, stop: socket.socket) -> None:
        """`stop` ends the loop once it can be read."""
        self._keeper = keeper
        self._listener = listener
        self._stop = stop
        self._numbers = itertools.count(1)
        self._peers: set[PowerPeer] = set()
        self._behind: dict[PowerPeer, None] = {}
        """Connections with unanswered questions, in order."""
        self._selector = selectors.DefaultSelector()
        self._accepts = True
        self._retry_s = time.monotonic() + RETRY_S
        self._watchdog = PowerWatchdog()

    def run(self) -> None:
        """Serve; at the end connections are closed, and their leases still held."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        try:
            while True:
                ready = self._selector.select(self._rest_s())
                if any(key.fileobj is self._stop for key, _ in ready):
                    return
                self._answer_each([key for key, _ in ready])
                if time.monotonic() >= self._retry_s:
                    self._try_again()
                self._watchdog.feed()
        finally:
            for peer in self._peers:
                peer.sock.close()
            self._selector.close()

    def _rest_s(self) -> float | None:
        """Time until there is work without a new question; None: for ever."""
        if self._behind:
            return 0.0
        due_s = self._watchdog.due_s
        if self._keeper.unsettled or not self._accepts:
            due_s = min(due_s, self._retry_s)
        return None if due_s == math.inf else max(0.0, due_s - time.monotonic())

    def _try_again(self) -> None:
        """Retry what failed."""
        self._keeper.settle_again()
        if not self._accepts:
            self._accepts = True
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._retry_s = time.monotonic() + RETRY_S

    def _answer_each(self, ready: Sequence[selectors.SelectorKey]) -> None:
        """Answer one question of each connection that has some, so that no connection delays the
        others.
        """
        asking = dict.fromkeys(self._behind)
        self._behind.clear()
        for key in ready:
            if key.fileobj is self._listener:
                self._accept()
            else:
                asking[key.data] = None
        for peer in asking:
            self._go_on(peer)
            self._watchdog.feed()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # the listener stays readable: it is unregistered for a while
            log.warning("a connection was not accepted: %s", error)
            self._accepts = False
            self._retry_s = time.monotonic() + RETRY_S
            self._selector.unregister(self._listener)
            return
        if len(self._peers) < MOST_CONNECTIONS:
            peer = PowerPeer(sock, next(self._numbers))
            self._peers.add(peer)
            self._selector.register(sock, selectors.EVENT_READ, peer)
            return
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(frame(refusal(PowerError("there are too many connections"))))

    def _go_on(self, peer: PowerPeer) -> None:
        """Read where there is room for answers, answer one question, and send what can be sent."""
        try:
            if not peer.answers and not peer.asks:
                self._receive(peer)
            peer.flush()
            self._answer_line(peer)
        except (OSError, PowerError) as error:
            self._close(peer, error)
            return
        if peer.asks and len(peer.answers) < ANSWERS_BYTES:
            self._behind[peer] = None
        wanted = selectors.EVENT_WRITE if peer.answers else selectors.EVENT_READ
        if self._selector.get_key(peer.sock).events != wanted:
            self._selector.modify(peer.sock, wanted, peer)

    def _receive(self, peer: PowerPeer) -> None:
        """Read what came. Raises OSError at the end of the connection."""
        with contextlib.suppress(BlockingIOError):
            data = peer.sock.recv(FRAME_LIMIT_BYTES)
            if not data:
                raise ConnectionResetError("closed by the other side")
            peer.received += data

    def _answer_line(self, peer: PowerPeer) -> None:
        """Answer one line. Raises PowerError for one that is too long, after an answer that says
        so.
        """
        if len(peer.answers) >= ANSWERS_BYTES:
            return
        try:
            line = peer.next_line()
        except PowerError as error:
            peer.answers += frame(refusal(error))
            peer.flush()
            raise
        if line is not None:
            peer.answers += frame(self._answer(peer.number, line))
            peer.flush()

    def _answer(self, number: int, line: bytes) -> PowerAnswer:
        try:
            asked = question_of(line)
            if isinstance(asked, LeaseCap):
                return self._keeper.lease(number, asked)
            return self._keeper.read(asked)
        except PowerError as error:
            return refusal(error)

    def _close(self, peer: PowerPeer, why: Exception) -> None:
        log.debug("connection %d ends: %s", peer.number, why)
        self._selector.unregister(peer.sock)
        self._peers.discard(peer)
        peer.sock.close()
        self._keeper.drop(peer.number)
