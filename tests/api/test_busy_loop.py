"""A client is not called slow because this process was."""

import asyncio
import socket
import time
from typing import cast

import uvloop
from aiohttp import web

from daemon.api.http.connection import Connection
from daemon.api.http.connections import Connections
from daemon.api.http.tally import Tally
from daemon.config.schema import ServerConfig

HEADER_TIMEOUT_S = 0.1


async def answer(request: web.BaseRequest) -> web.Response:
    """As the daemon's middleware has it: the headers are there."""
    cast(Connection, request.protocol).begin(request)
    return web.Response(text="here")


async def asked_while_busy(asks: bool) -> tuple[bytes, Tally]:
    """What a client gets whose headers come, if it `asks`, while the loop is busy for longer than
    they may take; uvloop looks at its clock before it reads.
    """
    tally, server = Tally(), web.Server(answer)
    connections = Connections(ServerConfig(header_timeout_s=HEADER_TIMEOUT_S), tally)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: connections.connect(server), "127.0.0.1", 0)
    with socket.create_connection(listener.sockets[0].getsockname()) as client:
        while not connections.open:
            await asyncio.sleep(0.001)
        if asks:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2 * HEADER_TIMEOUT_S)
        got = await asyncio.to_thread(client.recv, 4096)
    listener.close()
    return got, tally


def test_headers_that_came_in_time_are_read() -> None:
    got, tally = uvloop.run(asked_while_busy(True))
    assert got.startswith(b"HTTP/1.1 200") and not tally.totals


def test_whoever_sends_nothing_is_still_cut() -> None:
    got, tally = uvloop.run(asked_while_busy(False))
    assert got == b"" and sum(tally.totals.values()) == 1
