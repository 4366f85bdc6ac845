"""The worker's end of a channel, against another one in a thread."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from daemon.wire.blocking import BlockingChannel
from daemon.wire.frames import INLINE_LIMIT_BYTES, FrameError, memfd_frame
from tests.hangs import HANG_S

Pair = tuple[socket.socket, socket.socket]
PAYLOADS = [
    b"",
    b"small",
    os.urandom(INLINE_LIMIT_BYTES),
    os.urandom(INLINE_LIMIT_BYTES + 1),
    os.urandom(3_000_000),
    b"last",
]


def test_payloads_of_every_size_come_in_order_both_ways(pair: Pair) -> None:
    left, right = map(BlockingChannel, pair)

    def echo() -> None:
        while (payload := right.receive()) is not None:
            right.send(payload)
        right.close()

    with ThreadPoolExecutor(1) as thread:
        echoing = thread.submit(echo)
        for payload in PAYLOADS:
            left.send(payload)
            assert left.receive() == payload
        left.close()
        echoing.result(timeout=HANG_S)


def test_many_frames_wait_for_a_slow_reader(pair: Pair) -> None:
    left, right = map(BlockingChannel, pair)
    sent = [os.urandom(1000 * (i % 90)) for i in range(120)]

    def send() -> None:
        for payload in sent:
            left.send(payload)
        left.close()

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        received = list(iter(right.receive, None))
        sending.result(timeout=HANG_S)
    right.close()
    assert received == sent


def test_closing_closes_what_was_never_read(pair: Pair) -> None:
    left, right = map(BlockingChannel, pair)
    left.send(bytes(INLINE_LIMIT_BYTES + 1))
    left.send(b"small")
    assert len(right.receive() or b"") == INLINE_LIMIT_BYTES + 1
    left.send(bytes(INLINE_LIMIT_BYTES + 1))
    left.close()
    right.close()


def test_half_a_frame_is_no_frame(pair: Pair) -> None:
    right = BlockingChannel(pair[1])
    pair[0].sendall(b"\x09\0\0\0\0half")
    pair[0].close()
    assert right.receive() is None
    right.close()


def test_a_broken_peer_is_an_error(pair: Pair) -> None:
    right = BlockingChannel(pair[1])
    header, fd = memfd_frame(b"kept to itself")
    os.close(fd)
    pair[0].sendall(header)
    with pytest.raises(FrameError):
        right.receive()
    right.close()


def test_waiting_ends_with_a_frame_the_end_or_the_time(pair: Pair) -> None:
    left, right = map(BlockingChannel, pair)
    assert not right.wait(0.0) and not right.wait(-1.0)
    left.send(b"one")
    left.send(b"two")
    assert right.wait(5.0) and right.receive() == b"one"
    assert right.wait(0.0), "what was read already counts too"
    assert right.receive() == b"two" and not right.wait(0.01)
    left.close()
    assert right.wait(5.0) and right.receive() is None
    right.close()


def test_a_peer_that_ends_with_frames_unread_is_gone_like_any_other(pair: Pair) -> None:
    """The kernel says that the connection was reset, as where the peer was killed."""
    right = BlockingChannel(pair[1])
    right.send(b"never read")
    pair[0].close()
    assert right.receive() is None
    right.close()
