"""What clients that do not read cost the others: `python -m benchmarks.slow_readers`.

The same streams twice through a real API process: once everybody reads; once some clients, with
many choices each, never do. Printed for the clients that read: the times between two events; for
the API process: how much its memory grew, and what it said of those that it cut.
"""

import argparse
import asyncio
import json
import os
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.fanout import MODEL, RuntimeEnd, resident_kib, start_api, wait_ready
from tests.api.folder import build

SMALL_BUFFER_BYTES = 4096


def ask(port: int, num_choices: int, max_tokens: int, buffer_bytes: int = 0) -> socket.socket:
    """A connection on which a stream was asked for."""
    body = {"model": MODEL, "prompt": "hello world", "stream": True}
    data = json.dumps({**body, "max_tokens": max_tokens, "n": num_choices}).encode()
    sock = socket.socket()
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.connect(("127.0.0.1", port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    sock.setblocking(False)
    return sock


def client(arguments: argparse.Namespace) -> None:
    """Read the narrow streams to their ends, the wide ones only where they are not deaf."""
    port, steps = arguments.client, arguments.steps
    wide = [ask(port, arguments.choices, steps, SMALL_BUFFER_BYTES) for _ in range(arguments.wide)]
    narrow = [ask(port, 1, steps) for _ in range(arguments.streams)]
    selector = selectors.DefaultSelector()
    for sock in narrow if arguments.deaf else [*narrow, *wide]:
        selector.register(sock, selectors.EVENT_READ)
    last_s, gaps_s = dict.fromkeys(narrow, 0.0), []
    while last_s:
        for key, _mask in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            received, now = sock.recv(65536), time.perf_counter()
            if sock in last_s:
                if last_s[sock] and received.count(b"data: {"):
                    gaps_s.append(now - last_s[sock])
                last_s[sock] = now
                if received.endswith(b"\n\r\n0\r\n\r\n") or received == b"0\r\n\r\n":
                    del last_s[sock]
                    received = b""
            if not received:
                selector.unregister(sock)
    percentiles = np.percentile(np.asarray(gaps_s) * 1e3, [50, 99, 99.9]).round(2).tolist()
    print(json.dumps(dict(zip(("p50_ms", "p99_ms", "p999_ms"), percentiles, strict=True))))


async def measure(arguments: argparse.Namespace, deaf: bool) -> dict[str, object]:
    """One run's numbers."""
    steps = int(arguments.seconds / (arguments.step_ms / 1e3))
    with tempfile.TemporaryDirectory() as folder:
        root = build(Path(folder))
        process, sock, port = start_api(root)
        runtime = RuntimeEnd(sock, root)
        await wait_ready(port)
        idle_kib = resident_kib(process.pid)
        flags = {"client": port, "streams": arguments.streams, "wide": arguments.wide}
        flags |= {"choices": arguments.choices, "steps": steps}
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        reading = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.slow_readers", *words),
            *(["--deaf"] if deaf else []),
            stdout=asyncio.subprocess.PIPE,
        )
        while len(runtime.requests) < arguments.streams + arguments.wide:
            await asyncio.sleep(0.01)
        await runtime.feed(steps, arguments.step_ms / 1e3)
        grown_kib = resident_kib(process.pid) - idle_kib
        output, _ = await reading.communicate()
        runtime.close()
        await asyncio.get_running_loop().run_in_executor(None, process.wait)
    return {"deaf": deaf, "grown_mib": round(grown_kib / 1024, 1), **json.loads(output)}


def main() -> None:
    """Measure both ways in turns, or be the client of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64, help="of clients that read")
    parser.add_argument("--wide", type=int, default=4, help="clients that may be deaf")
    parser.add_argument("--choices", type=int, default=64, help="of each of these")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=25.0)
    parser.add_argument("--rounds", type=int, default=3)
    for hidden in ("--client", "--steps"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--deaf", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments)
        return
    for _round in range(arguments.rounds):
        for deaf in (False, True):
            print(json.dumps(uvloop.run(measure(arguments, deaf))), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
