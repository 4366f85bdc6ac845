"""The asyncio end of a channel: order, size, slow and dead peers, and nothing left behind."""

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from daemon.wire import channel as channel_module
from daemon.wire.channel import Channel
from daemon.wire.frames import INLINE_LIMIT_BYTES, inline_frame, memfd_frame
from tests.hangs import HANG_S

Pair = tuple[socket.socket, socket.socket]
BIG = INLINE_LIMIT_BYTES + 1


class End:
    """A channel and what came out of it."""

    def __init__(self, sock: socket.socket, take: Callable[[bytes], None] | None = None) -> None:
        self.frames: list[bytes] = []
        self.errors: list[str] = []
        self.channel = Channel(sock, take or self.frames.append, self.errors.append)

    async def received(self, count: int) -> list[bytes]:
        await until(lambda: len(self.frames) >= count or bool(self.errors))
        return self.frames

    async def closed(self) -> str:
        await until(lambda: bool(self.errors))
        await asyncio.sleep(0.01)
        assert len(self.errors) == 1, "on_close is called once"
        assert self.channel.closed
        return self.errors[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_both_ways_in_order_with_memfds_between(pair: Pair) -> None:
    left, right = End(pair[0]), End(pair[1])
    payloads = [b"", b"a", os.urandom(BIG), b"b", os.urandom(INLINE_LIMIT_BYTES), os.urandom(BIG)]
    for payload in payloads:
        left.channel.send(payload)
        right.channel.send(payload)
    assert await right.received(len(payloads)) == payloads
    assert await left.received(len(payloads)) == payloads
    left.channel.close()
    assert await right.closed() == "the peer closed the connection"
    assert not left.errors, "who closes is not told"


async def test_a_peer_that_reads_late_gets_everything(pair: Pair) -> None:
    left = End(pair[0])
    sizes = (10, BIG, 60_000, 0, INLINE_LIMIT_BYTES)
    payloads = [os.urandom(sizes[i % 5]) for i in range(200)]
    for payload in payloads:
        left.channel.send(payload)
    await asyncio.sleep(0.01)
    right = End(pair[1])
    assert await right.received(len(payloads)) == payloads
    left.channel.close()
    right.channel.close()


async def test_bytes_one_by_one_make_a_frame(pair: Pair) -> None:
    right = End(pair[1])
    for byte in inline_frame(b"slowly"):
        pair[0].sendall(bytes([byte]))
        await asyncio.sleep(0.001)
    assert await right.received(1) == [b"slowly"]
    right.channel.close()


async def test_a_peer_that_stops_reading_is_given_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "PENDING_LIMIT_BYTES", 1_000_000)
    left = End(pair[0])
    for _ in range(40):
        left.channel.send(bytes(BIG))
        left.channel.send(bytes(60_000))
    assert await left.closed() == "the peer stopped reading"
    left.channel.send(b"nobody hears this")


async def test_a_peer_that_reads_slowly_but_steadily_is_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what waits now, not what ever waited since the queue was empty."""
    monkeypatch.setattr(channel_module, "PENDING_LIMIT_BYTES", 1_500_000)
    left = End(pair[0])
    for _ in range(10):
        left.channel.send(bytes(60_000))
    pair[1].setblocking(False)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANG_S):
        for _ in range(60):
            left.channel.send(bytes(60_000))
            left_over = 60_005
            while left_over and (data := await loop.sock_recv(pair[1], left_over)):
                left_over -= len(data)
            assert not left_over, "the channel was closed"
    assert not left.errors
    left.channel.close()


async def test_a_slow_peer_s_memfds_are_closed_with_the_channel(pair: Pair) -> None:
    left = End(pair[0])
    for _ in range(5):
        left.channel.send(bytes(60_000))
    for _ in range(20):
        left.channel.send(bytes(BIG))
    left.channel.close()


async def test_memfds_that_were_never_read_are_closed(pair: Pair) -> None:
    left = End(pair[0])
    right = End(pair[1], lambda _payload: right.channel.close())
    for _ in range(3):
        left.channel.send(bytes(BIG))
    assert await left.closed()
    assert not right.errors


@pytest.mark.parametrize("rubbish", [b"\xff" * 9, b"\0\0\0\0\x07", memfd_frame])
async def test_rubbish_closes_the_channel(pair: Pair, rubbish: object) -> None:
    right = End(pair[1])
    if not isinstance(rubbish, bytes):
        rubbish, fd = memfd_frame(b"its memfd stays here")
        os.close(fd)
    pair[0].sendall(inline_frame(b"good") + rubbish)
    assert "frame" in await right.closed()
    assert right.frames == [b"good"]


async def test_half_a_frame_and_the_end(pair: Pair) -> None:
    right = End(pair[1])
    pair[0].sendall(inline_frame(b"complete") + inline_frame(b"torn")[:7])
    pair[0].close()
    assert await right.closed() == "the peer closed the connection"
    assert right.frames == [b"complete"]


async def test_last_words_are_heard_though_sending_fails_first(pair: Pair) -> None:
    """A worker says `Failed` and exits; a plan sent just then must not drown it."""
    right = End(pair[1])
    pair[0].sendall(inline_frame(b"last words"))
    pair[0].close()
    right.channel.send(b"to the dead")
    right.channel.send(bytes(BIG))
    assert await right.closed()
    assert right.frames == [b"last words"]


async def test_on_close_never_comes_from_inside_send(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Senders are in the middle of something: a hang-up there would run before its end."""
    monkeypatch.setattr(channel_module, "PENDING_LIMIT_BYTES", 1_000_000)
    left, right = End(pair[0]), End(pair[1])
    while not left.channel.closed:
        left.channel.send(bytes(60_000))
    assert not left.errors
    assert await left.closed() == "the peer stopped reading"
    await right.closed()


async def test_a_fault_in_a_callback_is_not_taken_for_the_peer_s(pair: Pair) -> None:
    taken = []

    def take(payload: bytes) -> None:
        taken.append(payload)
        if payload == b"bad":
            raise BlockingIOError("of the callback's own")

    faults = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
    left, right = End(pair[0]), End(pair[1], take)
    left.channel.send(b"bad")
    await until(lambda: bool(faults))
    assert isinstance(faults[0], BlockingIOError)
    assert not right.errors
    left.channel.send(b"good")
    await until(lambda: taken == [b"bad", b"good"])
    faults.clear()
    left.channel.close()
    right.channel.close()
