"""Frames as bytes: cut anywhere, broken anyhow, with memfds that come, lie or stay away."""

import contextlib
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.wire.frames import FrameError, FrameReader, inline_frame, memfd_frame

Pair = tuple[socket.socket, socket.socket]


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_frames_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(inline_frame, payloads))
    reader = FrameReader()
    received: list[bytes] = []
    place = 0
    while place < len(stream):
        size = cuts[place % len(cuts)]
        reader.feed(stream[place : place + size])
        received += reader.payloads()
        place += size
    assert received == payloads
    assert not list(reader.payloads())


@given(st.binary(min_size=5, max_size=200))
def test_garbage_is_an_error_or_waits_for_more(data: bytes) -> None:
    reader = FrameReader(limit_bytes=64)
    reader.feed(data)
    with contextlib.suppress(FrameError):
        for payload in reader.payloads():
            assert len(payload) <= 64


@pytest.mark.parametrize("header", [struct.pack("<IB", 65, 0), struct.pack("<IB", 1, 2)])
def test_a_bad_header_comes_after_the_good_frames(header: bytes) -> None:
    reader = FrameReader(limit_bytes=64)
    reader.feed(inline_frame(b"good") + header + b"x" * 100)
    payloads = reader.payloads()
    assert next(payloads) == b"good"
    with pytest.raises(FrameError, match="bad frame header"):
        next(payloads)


def test_an_announced_memfd_that_did_not_come(pair: Pair) -> None:
    header, fd = memfd_frame(b"lost")
    os.close(fd)
    reader = FrameReader()
    pair[0].sendall(header)
    assert reader.receive(pair[1])
    with pytest.raises(FrameError, match="did not come"):
        list(reader.payloads())


@pytest.mark.parametrize("length", [0, 3, 5])
def test_a_memfd_of_another_size(pair: Pair, length: int) -> None:
    header, fd = memfd_frame(b"four")
    os.ftruncate(fd, length)
    socket.send_fds(pair[0], [header], [fd])
    os.close(fd)
    reader = FrameReader()
    assert reader.receive(pair[1])
    with pytest.raises(FrameError, match="announced size"):
        list(reader.payloads())


def test_a_memfd_may_be_empty(pair: Pair) -> None:
    header, fd = memfd_frame(b"")
    socket.send_fds(pair[0], [header], [fd])
    os.close(fd)
    reader = FrameReader()
    assert reader.receive(pair[1])
    assert list(reader.payloads()) == [b""]


def test_memfds_that_nobody_read_are_closed(pair: Pair) -> None:
    for _ in range(3):
        header, fd = memfd_frame(b"unread")
        socket.send_fds(pair[0], [header], [fd])
        os.close(fd)
    reader = FrameReader()
    for _ in range(3):
        assert reader.receive(pair[1])
    reader.close()  # the descriptor count is checked by the fixture
