"""Links between workers on two nodes: the hosts of both pass on what the ends say to each other.

To either worker its host is the other end of a link on one machine: messages over a socketpair, and
blocks in the slots of a ring in memory that both map. A relay sends the messages on as they are,
and behind one that says that a slot is filled what lies in it. The other host's ring has the same
slots, so the ends' own flow control holds over both rings; their sums are of the blocks where they
leave one pool and where they lie in the other, so they cover all of the way.
"""

import contextlib
import logging
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from daemon.cluster.direct import DirectConnection, Door, connect
from daemon.protocol.ring import Filled, RingShape, hand_memory, handed_memory, new_memory
from daemon.protocol.worker import EndLink, NewLink, StartTransfer
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder
from daemon.wire.frames import FrameError, FrameReader, inline_frame

log = logging.getLogger(__name__)

NUMBER_S = 5.0
"""Time for who was let in to say which link it comes for."""
_NUMBER = struct.Struct("<q")
_MOST_EARLY = 64
_ACCEPT_S = 3600.0


def _begins(*kinds: type) -> tuple[bytes, ...]:
    """The bytes of messages of these kinds behind the first, which counts their fields."""
    return tuple(msgspec.msgpack.encode(kind.__name__) for kind in kinds)


_FOR_LINKS = _begins(NewLink, EndLink, StartTransfer)
_OF_RING = _begins(RingShape, Filled)
_ORDERS = decoder(NewLink | EndLink | StartTransfer)
_RINGS = decoder(RingShape | Filled)
_LOST = OSError, ValueError, IndexError, FrameError, msgspec.DecodeError
"""A connection that is lost, and one whose peer sends what no end of a link would."""


class _Joining(NamedTuple):
    """A link whose worker has its end, and whose other host is not connected yet."""

    link: int
    sock: socket.socket
    sends: bool


class LinkRelay:
    """One link's relay on one node, from `start` until both directions have ended."""

    def __init__(self, joining: _Joining, far: DirectConnection, ended: Callable[[], None]) -> None:
        """It owns both connections; `ended` is called once they are closed."""
        self._joining, self._far, self._ended = joining, far, ended
        self._sock = joining.sock
        self._channel = BlockingChannel(joining.sock)
        self._ring: mmap.mmap | None = None
        self._slot_bytes = 0
        self._awaited: tuple[Filled, bytes] | None = None  # whose slot's bytes come next

    def start(self) -> None:
        """Pass on messages, on threads of its own."""
        threading.Thread(target=self._live, name="relay", daemon=True).start()

    def cut(self) -> None:
        """End it now: both ends find that the other one is gone."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._far.close()

    def _live(self) -> None:
        back = threading.Thread(target=self._pass_in, name="relay-in", daemon=True)
        back.start()
        self._pass_out()
        back.join()
        self._channel.close()
        self._far.close()
        self._ended()

    def _pass_out(self) -> None:
        """The worker's messages to the other host, until it hangs up."""
        try:
            with contextlib.ExitStack() as stack:
                memory = -1
                if self._joining.sends:
                    memory, _ = stack.enter_context(handed_memory(self._sock))
                while (payload := self._channel.receive()) is not None:
                    self._far.send(inline_frame(payload))
                    if payload.startswith(_OF_RING, 1):
                        self._send_of_ring(_RINGS.decode(payload), memory)
        except _LOST as error:
            log.info("relay of link %d: %s: %s", self._joining.link, type(error).__name__, error)
        self._far.end()

    def _send_of_ring(self, message: RingShape | Filled, memory: int) -> None:
        """Map the ring of a worker that sends, or send what lies in a slot."""
        if isinstance(message, RingShape):
            self._map(memory, message, mmap.PROT_READ)
        else:
            assert self._ring is not None, "its shape comes first"
            self._far.send(inline_frame(self._ring[self._slot(message)]))

    def _pass_in(self) -> None:
        """The other host's messages to the worker, until there are no more."""
        reader = FrameReader()
        try:
            while octets := self._far.receive():
                reader.feed(octets)
                with contextlib.closing(reader.payloads()) as payloads:
                    for payload in payloads:
                        self._take(payload)
        except _LOST as error:
            log.info("relay of link %d: %s: %s", self._joining.link, type(error).__name__, error)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def _take(self, payload: bytes) -> None:
        """Give the worker a message, that of a slot once its bytes are there."""
        if self._awaited is not None:
            message, filled = self._awaited
            self._awaited = None
            assert self._ring is not None, "its shape comes first"
            self._ring[self._slot(message)] = payload
            self._channel.send(filled)
        elif payload.startswith(_OF_RING, 1):
            self._take_of_ring(_RINGS.decode(payload), payload)
        else:
            self._channel.send(payload)

    def _take_of_ring(self, message: RingShape | Filled, payload: bytes) -> None:
        """Make the ring of a worker that receives, or wait for a slot's bytes."""
        if isinstance(message, Filled):
            self._awaited = message, payload
            return
        memory = new_memory(message.num_slots * message.slot_bytes)
        try:
            self._map(memory, message, mmap.PROT_READ | mmap.PROT_WRITE)
            hand_memory(self._sock, memory)
        finally:
            os.close(memory)
        self._channel.send(payload)

    def _map(self, memory: int, shape: RingShape, access: int) -> None:
        self._slot_bytes = shape.slot_bytes
        self._ring = mmap.mmap(memory, shape.num_slots * shape.slot_bytes, prot=access)

    def _slot(self, message: Filled) -> slice:
        """The bytes of a slot that is filled. Raises ValueError where there are none such."""
        start = message.slot * self._slot_bytes
        if not (0 < message.size_bytes <= self._slot_bytes and 0 <= start < len(self._ring or b"")):
            raise ValueError(f"there is no slot {message.slot} of {message.size_bytes} bytes")
        return slice(start, start + message.size_bytes)


class LinkRelays:
    """All relays of a worker's host: who sends calls the host of who receives."""

    def __init__(self, door: Door, links: socket.socket) -> None:
        """`door`: where other hosts call; `links`: over which the worker gets its links."""
        self._door, self._links = door, links
        self._lock = threading.Lock()  # of the three below
        self._joining: dict[tuple[int, bool], _Joining] = {}  # by the peer, and whether it sends
        self._early: dict[int, DirectConnection] = {}  # hosts that came before the daemon's order
        self._running: dict[int, LinkRelay] = {}  # by link
        threading.Thread(target=self._let_in, name="relays", daemon=True).start()

    def take(self, payload: bytes) -> bool:
        """Whether a message of the daemon is one for links; all others wait for steps."""
        if not payload.startswith(_FOR_LINKS, 1):
            return False
        message: NewLink | EndLink | StartTransfer = _ORDERS.decode(payload)
        if isinstance(message, StartTransfer):
            return message.at_once and self._hand(payload)
        if isinstance(message, NewLink):
            self._join(message, payload)
        else:
            self._hand(payload)
            self._cut(message)
        return True

    def close(self) -> None:
        """Let nobody in any more, and end all relays."""
        self._door.close()
        with self._lock:
            for joining in self._joining.values():
                joining.sock.close()
            for far in self._early.values():
                far.close()
            running = list(self._running.values())
        for relay in running:
            relay.cut()

    def _hand(self, payload: bytes, *fds: int) -> bool:
        """Whether the worker takes a message past its plans."""
        try:
            socket.send_fds(self._links, [payload], fds, socket.MSG_DONTWAIT)
        except OSError as error:  # it is stopped, or the message is too long
            log.warning("the worker takes nothing for its links: %s", error)
            return False
        return True

    def _join(self, order: NewLink, payload: bytes) -> None:
        """Give the worker its end of a link, and connect the other one."""
        ours, theirs = socket.socketpair()
        with theirs:
            if not self._hand(payload, theirs.fileno()):
                ours.close()  # its peer waits for nothing, as for a worker that does not meet it
                return
        joining, end = _Joining(order.link, ours, order.sends), (order.peer, order.sends)
        with self._lock:
            older = self._joining.pop(end, None)
            self._joining[end] = joining
            far = self._early.pop(order.link, None)
        if older is not None:
            older.sock.close()
        if order.door is not None:
            threading.Thread(target=self._call, args=(order,), name="relay", daemon=True).start()
        elif far is not None:
            self._meet(order.link, far)

    def _call(self, order: NewLink) -> None:
        """Connect to the host of a worker that receives."""
        assert order.door is not None, "it sends"
        try:
            far = connect(order.door)
            far.send(_NUMBER.pack(order.link))
        except OSError as error:
            log.warning("link %d: no connection to its host: %s", order.link, error)
            self._cut(EndLink(order.peer, True, order.link))
            return
        if not self._meet(order.link, far):
            far.close()

    def _let_in(self) -> None:
        """Let in hosts of workers that send, on a thread."""
        while not self._door.closed:
            far = self._door.accept(_ACCEPT_S)
            if far is not None:
                threading.Thread(
                    target=self._hear_number, args=(far,), name="relay", daemon=True
                ).start()

    def _hear_number(self, far: DirectConnection) -> None:
        """Ask who was let in which link it comes for."""
        far.settimeout(NUMBER_S)
        said = far.exactly(_NUMBER.size)
        far.settimeout(None)
        if len(said) < _NUMBER.size:
            far.close()
            return
        (link,) = _NUMBER.unpack(said)
        with self._lock:
            is_early = all(joining.link != link for joining in self._joining.values())
            if is_early:
                self._early[link] = far
            late = len(self._early) > _MOST_EARLY
            forgotten = self._early.pop(next(iter(self._early))) if late else None
        if forgotten is not None:
            forgotten.close()
        if not is_early and not self._meet(link, far):
            far.close()

    def _meet(self, link: int, far: DirectConnection) -> bool:
        """Whether a link's worker still waits for the other host; its relay begins."""
        with self._lock:
            end = next((end for end, each in self._joining.items() if each.link == link), None)
            if end is None:
                return False
            relay = LinkRelay(self._joining.pop(end), far, lambda: self._forget(link))
            self._running[link] = relay
        relay.start()
        return True

    def _forget(self, link: int) -> None:
        with self._lock:
            self._running.pop(link, None)

    def _cut(self, order: EndLink) -> None:
        """End a link's relay, or wait for the other host no more."""
        with self._lock:
            joining = self._joining.get((order.peer, order.sends))
            if joining is not None and joining.link == order.link:
                del self._joining[order.peer, order.sends]
                joining.sock.close()
            early = self._early.pop(order.link, None)
            relay = self._running.get(order.link)
        if early is not None:
            early.close()
        if relay is not None:
            relay.cut()
