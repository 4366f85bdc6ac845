"""A client that reads slowly loses nothing, one that stops is cut, and either costs little."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.answer.backlog import PIECE_BYTES, Backlog
from daemon.api.answer.sink import BACKLOG_LIMIT_BYTES, TRANSPORT_LIMIT_BYTES, Sink
from tests.hangs import HANG_S

STREAM_LIMIT_BYTES = TRANSPORT_LIMIT_BYTES + BACKLOG_LIMIT_BYTES


def event(number: int) -> bytes:
    """About what a token is."""
    piece = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1750000000}
    piece |= {"model": "tiny", "choices": [{"index": 0, "text": f" {number}"}]}
    return b"data: " + json.dumps(piece).encode() + b"\n\n"


class Client:
    """A client's end with small kernel buffers, and the sink that feeds it."""

    def __init__(self, sink: Sink, transport: asyncio.Transport, sock: socket.socket) -> None:
        self.sink, self.transport, self.sock = sink, transport, sock
        self.cuts = 0

    @property
    def num_kept_bytes(self) -> int:
        """What this process holds for the client."""
        backlog, unsent = self.sink._backlog, self.transport.get_write_buffer_size()
        return unsent + (backlog.size_bytes if backlog is not None else 0)

    async def read(self, num_bytes: int) -> bytes:
        """What the sink sends, so much of it."""
        loop, received = asyncio.get_running_loop(), b""
        async with asyncio.timeout(HANG_S):
            while len(received) < num_bytes:
                received += await loop.sock_recv(self.sock, 65536)
        return received


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A connected client that reads nothing by itself; it may stall for 0.3 s."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setblocking(False)
    _reader, writer = await asyncio.open_connection(sock=ours)
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)

    def cut() -> None:
        made.cuts += 1

    made = Client(Sink(0.3, cut), transport, theirs)
    yield made
    made.sink.close()
    transport.abort()
    theirs.close()


async def test_a_stalled_client_is_cut(client: Client):
    client.sink.write(b"first")
    client.sink.attach(client.transport, chunked=True)
    began = asyncio.get_running_loop().time()
    for number in range(1000):
        client.sink.write(event(number))
        assert client.num_kept_bytes <= STREAM_LIMIT_BYTES
    assert not client.transport.is_closing()
    async with asyncio.timeout(HANG_S):
        while not client.transport.is_closing():
            await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began >= 0.3
    assert client.cuts == 1
    assert client.sock.recv(8) == b"5\r\nfirst"
    client.sink.write(event(1))  # nobody hears it, and nothing breaks


async def test_a_flood_that_nobody_reads_is_cut_at_its_bound(client: Client):
    client.sink.attach(client.transport, chunked=True)
    chance = random.Random(1)
    written = 0
    while not client.transport.is_closing():
        client.sink.write(chance.randbytes(700))  # nothing to deflate
        written += 700
        assert client.num_kept_bytes <= STREAM_LIMIT_BYTES + 700
        assert written < 2 * STREAM_LIMIT_BYTES
    assert client.cuts == 1
    assert written > STREAM_LIMIT_BYTES - 2 * PIECE_BYTES


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_slow_client_gets_everything_in_order(client: Client, chunked: bool):
    events = [event(number) for number in range(4000)]  # 600 KB
    client.sink.attach(client.transport, chunked)
    for one in events:
        client.sink.write(one)
    assert client.num_kept_bytes <= STREAM_LIMIT_BYTES
    emptied = asyncio.ensure_future(client.sink.emptied())
    whole = b"".join(events)
    received = b""
    for _pause in range(8):  # for longer than it may stall, but never without reading
        received += await client.read(40_000)
        await asyncio.sleep(0.06)
    assert not emptied.done()
    while not emptied.done():
        received += await client.read(1)
        await asyncio.sleep(0)
    client.sink.write(b"<end>")
    while not received.endswith(b"<end>\r\n" if chunked else b"<end>"):
        received += await client.read(1)
    assert (unframed(received) if chunked else received) == whole + b"<end>"
    assert client.cuts == 0


def unframed(received: bytes) -> bytes:
    """The contents of whole chunks."""
    found = []
    while b"\r\n" in received:
        head, _, rest = received.partition(b"\r\n")
        size = int(head, 16)
        if len(rest) < size + 2:
            break
        found.append(rest[:size])
        received = rest[size + 2 :]
    return b"".join(found)


@given(st.lists(st.binary(max_size=200) | st.just(b"x" * 9000), max_size=60), st.randoms())
def test_a_backlog_is_a_queue(events: list[bytes], chance: random.Random):
    backlog, out = Backlog(), b""
    for one in events:
        backlog.add(one)
        if chance.random() < 0.2:
            out += backlog.pop()
        assert backlog.size_bytes <= sum(map(len, events)) + 100
    while backlog:
        out += backlog.pop()
    assert out == b"".join(events)
    assert backlog.size_bytes == 0
