"""What a streamed event costs: `python -m benchmarks.fanout [--streams 256] [--seconds 8]`.

A real API process, a runtime's end that sends one `Tokens` frame a step for all streams, and a
client process that reads them on loopback. Printed: SSE events per second of the API process's CPU
time (user and system, from /proc), and how late the runtime's loop woke meanwhile.
"""

import argparse
import asyncio
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from daemon.protocol.api import Access, FromApi, Generate, SequenceStarted, Serving, Tokens
from daemon.state.request import sequence_id
from daemon.wire.channel import Channel
from daemon.wire.columns import Int32, decoder, encoder, int32
from tests.api.folder import build, tokenizer

MODEL = "fanout"
PROBE_S = 0.005


class RuntimeEnd:
    """Feeds every stream a token a step."""

    def __init__(self, sock: socket.socket, root: Path) -> None:
        self.requests: list[Generate] = []
        self.delays_s: list[float] = []
        self._words = spoken()
        self._encode = encoder().encode
        self._decode = decoder(FromApi).decode
        self._channel = Channel(sock, self._frame, lambda error: print("channel:", error))
        self._send(Access((), (), ()))
        self._send(
            Serving(
                model=MODEL,
                root=str(root),
                ready=True,
                draining=False,
                max_len=1 << 20,
                context_len=1 << 20,
                block_size=16,
                vocab_size=400,
                status="ready",
            )
        )

    async def feed(self, steps: int, step_s: float) -> float:
        """The steps of all requests, the last one ends them; gives the seconds that they took."""
        streams = [sequence_id(g.request, k) for g in self.requests for k in range(g.n)]
        sequences = np.asarray(streams, np.int64)
        for sequence in sequences.tolist():
            self._send(SequenceStarted(sequence, 0))
        random = np.random.default_rng(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for step in range(steps):
            reason = 2 if step + 1 == steps else 0
            self._send(
                Tokens(
                    sequences,
                    random.choice(self._words, len(sequences)),
                    np.full(len(sequences), reason, np.uint8),
                )
            )
            await asyncio.sleep(max(0.0, began + (step + 1) * step_s - loop.time()))
        return loop.time() - began

    async def probe(self) -> None:
        """Note how late a timer fires, again and again."""
        while True:
            due = time.perf_counter() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self.delays_s.append(time.perf_counter() - due)

    def close(self) -> None:
        """The API process ends with the channel."""
        self._channel.close()

    def _send(self, message: object) -> None:
        self._channel.send(self._encode(message))

    def _frame(self, payload: bytes) -> None:
        message = self._decode(payload)
        if isinstance(message, Generate):
            self.requests.append(message)


def spoken() -> Int32:
    """The tokens that are whole characters, so that each makes an event."""
    words = tokenizer()
    return int32([t for t in range(4, words.get_vocab_size()) if words.decode([t]).isascii()])


def start_api(folder: Path) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """The API process, the runtime's socket and the port."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    fds = (theirs.fileno(), listener.fileno())
    command = [sys.executable, "-m", "daemon.api", "--fd", str(fds[0]), "--listen-fd", str(fds[1])]
    config = msgspec.json.encode({"model": MODEL}).decode()
    process = subprocess.Popen([*command, "--config", config], pass_fds=fds)
    port = listener.getsockname()[1]
    theirs.close()
    listener.close()
    return process, ours, port


def cpu_s(pid: int) -> tuple[float, float]:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def resident_kib(pid: int) -> int:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def client(port: int, streams: int, max_tokens: int) -> None:
    """Open the streams, read them to their ends, print the number of events."""
    body = {"model": MODEL, "prompt": "hello world", "stream": True, "max_tokens": max_tokens}
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(head.encode() + data)
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
    events, open_streams = 0, streams
    while open_streams:
        for key, _mask in selector.select():
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            received = sock.recv(65536)
            events += received.count(b"data: {")
            # A head can end with a zero, too: the last chunk follows another one or comes alone.
            last = received == b"0\r\n\r\n" or received.endswith(b"\n\r\n0\r\n\r\n")
            if last or not received:
                selector.unregister(sock)
                sock.close()
                open_streams -= 1
    print(events, flush=True)


async def wait_ready(port: int) -> None:
    """Wait until the API process takes requests."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        if b" 200 " in answer[:16]:
            return
        await asyncio.sleep(0.05)


async def measure(streams: int, seconds: float, step_s: float) -> dict[str, float]:
    """One run's numbers."""
    steps = int(seconds / step_s)
    with tempfile.TemporaryDirectory() as folder:
        root = build(Path(folder))
        process, sock, port = start_api(root)
        runtime = RuntimeEnd(sock, root)
        await wait_ready(port)
        idle_kib = resident_kib(process.pid)
        reading = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.fanout", "--client", str(port)),
            *("--streams", str(streams), "--max-tokens", str(steps)),
            stdout=asyncio.subprocess.PIPE,
        )
        while len(runtime.requests) < streams:
            await asyncio.sleep(0.01)
        probing = asyncio.create_task(runtime.probe())
        before = cpu_s(process.pid)
        wall_s = await runtime.feed(steps, step_s)
        grown_kib = resident_kib(process.pid) - idle_kib
        output, _ = await reading.communicate()
        after = cpu_s(process.pid)
        probing.cancel()
        runtime.close()
        await asyncio.get_running_loop().run_in_executor(None, process.wait)
    user_s, system_s = after[0] - before[0], after[1] - before[1]
    delays_ms = np.asarray(runtime.delays_s) * 1e3
    return {
        "streams": streams,
        "events": int(output),
        "wall_s": round(wall_s, 2),
        "user_s": round(user_s, 2),
        "system_s": round(system_s, 2),
        "events_per_cpu_s": round(int(output) / (user_s + system_s)),
        "kib_per_stream": round(grown_kib / streams, 1),
        "wake_delay_p50_ms": round(float(np.percentile(delays_ms, 50)), 3),
        "wake_delay_p99_ms": round(float(np.percentile(delays_ms, 99)), 3),
    }


def main() -> None:
    """Measure, or be the client of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--max-tokens", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client, arguments.streams, arguments.max_tokens)
        return
    began = time.monotonic()
    result = uvloop.run(measure(arguments.streams, arguments.seconds, arguments.step_ms / 1e3))
    print(json.dumps(result))
    print(f"{time.monotonic() - began:.1f} s in all; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
