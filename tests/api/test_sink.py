"""A client that stops reading is cut after a bounded time, and costs bounded memory."""

import asyncio
import socket
import time

import pytest

from daemon.api import sink as module
from daemon.api.sink import BUFFER_LIMIT_BYTES, Sink


async def test_a_stalled_client_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STALLED_LIMIT_S", 0.3)
    ours, theirs = socket.socketpair()
    _reader, writer = await asyncio.open_connection(sock=ours)
    transport = writer.transport
    assert isinstance(transport, asyncio.Transport)
    sink = Sink()
    sink.write(b"first")
    sink.attach(transport, chunked=True)
    began = time.monotonic()
    for _ in range(2000):
        sink.write(b"x" * 1000)
    assert transport.get_write_buffer_size() < BUFFER_LIMIT_BYTES + 2000
    while not transport.is_closing():
        await asyncio.sleep(0.01)
        assert time.monotonic() - began < 5
    assert time.monotonic() - began >= 0.3
    assert theirs.recv(15) == b"5\r\nfirst\r\n3e8\r\n"
    theirs.close()
