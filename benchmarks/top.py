"""What llmd-top costs: its share of a core, frames a second, and how long a key waits.

A made-up daemon pushes snapshots of 200 sequences ten times a second, whatever was asked for;
llmd-top runs on a pseudo terminal of 140x42 as a person would run it. A frame is one synchronized
update of the terminal. A key's time runs from its byte to the first byte of the frame that shows
what it did: the order of the sequences, whose name stands in the border. Then the daemon goes away
for a few seconds: keys again, and how long after its return llmd-top is connected.

    python -m benchmarks.top [--seconds 20] [--sequences 200] [--rate 10] [--size 140x42]
"""

import argparse
import asyncio
import fcntl
import os
import pty
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil

from daemon.control.client import encoded
from daemon.wire.frames import inline_frame
from tests.tui import scenario
from tui.ordering import SORTS

BEGIN_FRAME = b"\x1b[?2026h"
ASKS_FOR_FRAMES, HAS_FRAMES = b"\x1b[?2026$p", b"\x1b[?2026;1$y"


class Flood:
    """A daemon that sends a snapshot each `interval_s` to whoever connects."""

    def __init__(self, num_sequences: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._writer: asyncio.StreamWriter | None = None
        self.connected = asyncio.Event()
        self._frames = [
            inline_frame(encoded(scenario.swapping(step, num_running=num_sequences)))
            for step in range(60)
        ]

    async def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.connected.set()
        try:
            while True:
                for frame in self._frames:
                    writer.write(frame)
                    await writer.drain()
                    await asyncio.sleep(self._interval_s)
        except ConnectionError:
            pass

    def hang_up(self) -> None:
        """The daemon dies."""
        self.connected.clear()
        if self._writer is not None:
            self._writer.transport.abort()


class Terminal:
    """The far end of a pseudo terminal: what came, and when."""

    def __init__(self, columns: int, lines: int) -> None:
        self.near, self.far = pty.openpty()
        fcntl.ioctl(self.far, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.num_frames = 0
        self.num_bytes = 0
        self._tail = b""
        self._wanted = b""
        self._found: asyncio.Future[float] | None = None
        asyncio.get_running_loop().add_reader(self.near, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self.near, 1 << 16)
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self.near)
            return
        self.num_bytes += len(data)
        if ASKS_FOR_FRAMES in data:
            os.write(self.near, HAS_FRAMES)
        self.num_frames += data.count(BEGIN_FRAME)
        self._tail = (self._tail + data)[-200_000:]
        if self._found is not None and not self._found.done() and self._wanted in self._tail:
            self._found.set_result(time.perf_counter())

    async def seen(self, wanted: bytes, key: bytes = b"") -> float:
        """Seconds from pressing `key` until `wanted` comes."""
        self._wanted, self._tail = wanted, b""
        self._found = asyncio.get_running_loop().create_future()
        start_s = time.perf_counter()
        if key:
            os.write(self.near, key)
        return await asyncio.wait_for(self._found, 20) - start_s


async def measure(arguments: argparse.Namespace) -> None:
    columns, lines = map(int, arguments.size.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llmd.sock"
        flood = Flood(arguments.sequences, 1 / arguments.rate)
        server = await asyncio.start_unix_server(flood.serve, path)
        terminal = Terminal(columns, lines)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tui.app", "--socket", str(path),
            stdin=terminal.far, stdout=terminal.far, stderr=terminal.far,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
        )  # fmt: skip
        started_s = await terminal.seen(b"gpu1")
        await asyncio.sleep(2)
        child = psutil.Process(process.pid)
        before, frames, sent = child.cpu_times(), terminal.num_frames, terminal.num_bytes
        start_s = time.perf_counter()
        await asyncio.sleep(arguments.seconds)
        elapsed_s = time.perf_counter() - start_s
        after = child.cpu_times()
        cpu_s = after.user + after.system - before.user - before.system
        frames, sent = terminal.num_frames - frames, terminal.num_bytes - sent
        rss = child.memory_info().rss
        names = [*list(SORTS)[1:], next(iter(SORTS))]
        keys = [await pressed(terminal, name) for name in names]
        server.close()
        flood.hang_up()
        await terminal.seen(b"trying again")
        dead_keys = [await pressed(terminal, name) for name in names]
        path.unlink()
        server = await asyncio.start_unix_server(flood.serve, path)
        start_s = time.perf_counter()
        await flood.connected.wait()
        back_s = time.perf_counter() - start_s
        os.write(terminal.near, b"q")
        await process.wait()
        server.close()
    print(f"{arguments.sequences} sequences, {arguments.rate} snapshots/s, {arguments.size}:")
    print(f"  CPU        {100 * cpu_s / elapsed_s:5.1f} % of a core   (goal: a few %)")
    print(f"  frames     {frames / elapsed_s:5.1f} a second      (goal: 2 to 4)")
    print(f"  terminal   {sent / elapsed_s / 1024:5.1f} KiB/s;  memory {rss >> 20} MiB")
    print(f"  keys       {waited(keys)}   (goal: 100 ms)")
    print(f"  keys while the daemon is away {waited(dead_keys)}")
    print(f"  connected  {back_s:.2f} s after it came back   (goal: 2 s)")
    print(f"  first picture after {started_s:.2f} s")


def waited(keys: list[float]) -> str:
    return f"{1e3 * statistics.median(keys):5.0f} ms median, {1e3 * max(keys):.0f} ms worst"


async def pressed(terminal: Terminal, name: str) -> float:
    """Seconds until the next order's name stands in the border."""
    await asyncio.sleep(0.37)
    return await terminal.seen(name.encode(), b"s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What llmd-top costs.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--size", default="140x42")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
