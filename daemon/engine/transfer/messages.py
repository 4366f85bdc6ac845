"""Messages of the two ends of a transfer to each other, and of each to its own worker."""

import contextlib
import socket
import struct
import threading

import msgspec

from daemon.engine.transfer.layout import Layout, TransferError
from daemon.protocol.ring import Filled, RingShape
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import Column, decoder, encoder
from daemon.wire.frames import FrameError

DEAF_S = 10


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All of a transfer's blocks are in the receiver's pool; either end may use its own again.

    The receiver says how many of the first blocks arrived intact: those behind them are corrupt.
    """

    transfer: int
    elapsed_s: float  # since this end first heard of it
    num_right: int
    differs: bool = False  # blocks behind them are corrupt


class Broken(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A transfer ended early: of the receiver's blocks only the first ones that it says are right
    are valid. No copy touches them any more.
    """

    transfer: int
    reason: str
    num_right: int = 0
    elapsed_s: float = 0.0


class Lost(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The other end is gone or this one failed; all open transfers were reported `Broken`."""

    reason: str


News = Done | Broken | Lost


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender's pool; the ring, its memory and its shape, comes before it."""

    layout: Layout


class Shared(msgspec.Struct, frozen=True, array_like=True):
    """GPU memory that another process may open: `size_bytes` from `offset` of an allocation."""

    handle: bytes
    offset: int
    size_bytes: int


class ReceiverPool(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The receiver's answer: its pool, and how to write into it where that is possible."""

    layout: Layout
    num_blocks: int
    shared: Shared | None


class TransferWay(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender's choice: it writes into the pool, or the ring is used."""

    direct: bool


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A transfer begins; the receiver may expect `num_parts` parts of each block."""

    transfer: int
    targets: Column  # int32 [n], blocks of the receiver
    fills: Column  # int32 [n], tokens written of each
    num_parts: int  # layers, or 1 where blocks come whole


class Cleared(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """No step of the receiver touches a transfer's target blocks any more: they may be written."""

    transfer: int


class Freed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The receiver has copied a slot out."""

    slot: int


class Sent(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender has written all of a transfer into the receiver's pool itself."""

    transfer: int
    sums: Column  # int64 [n] of its blocks, as they left; empty: they are not checked


class Landed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The receiver has all of a transfer."""

    transfer: int


class Cancelled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A transfer is cancelled: nothing more of it comes."""

    transfer: int


class Declined(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A transfer that was ordered cannot start: the receiver gets this message about it alone."""

    transfer: int
    reason: str


class Bye(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This end closes, and no copy of it runs any more."""

    reason: str


Greeting = RingShape | Hello | ReceiverPool | TransferWay
Message = Greeting | Opened | Cleared | Filled | Freed | Sent | Landed | Cancelled | Declined | Bye


class TransferSocket:
    """The socket between both ends: whole messages, sent from any thread and read by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # A peer that reads nothing for this long counts as gone: a sending thread must not hang.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", DEAF_S, 0))
        self._channel = BlockingChannel(sock)
        self._sending = threading.Lock()
        self._encoder, self._decoder = encoder(), decoder(Message)

    def send(self, message: Message) -> None:
        """Send a message; nothing where the peer is gone, which `receive` will find."""
        payload = self._encoder.encode(message)
        try:
            with self._sending:
                self._channel.send(payload)
        except OSError:
            self.hang_up()

    def receive(self) -> Message | None:
        """The next message; None when the peer is gone.

        Raises TransferError for what is no message, and TimeoutError as the socket is set.
        """
        try:
            payload = self._channel.receive()
            if payload is None:
                return None
            message: Message = self._decoder.decode(payload)
        except TimeoutError:
            raise
        except OSError:
            return None
        except (FrameError, msgspec.DecodeError) as error:
            raise TransferError(f"the other end sent rubbish: {error}") from error
        return message

    def hang_up(self) -> None:
        """Shut the stream down for both ends; threads that send or receive return."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; the link may not be used any more."""
        self._channel.close()
