"""`llmd-top` as a person runs it: a process on a terminal."""

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
import time
from pathlib import Path

from daemon.control.server import ControlServer
from daemon.protocol.control import Snapshot
from tests.hangs import HANG_S
from tests.tui import scenario
from tui.recording import Recording

PROGRAM = (sys.executable, "-c", "import sys; from tui.app import main; sys.exit(main())")


def read_until(terminal: int, wanted: bytes, limit_s: float = HANG_S) -> bytes:
    """What the terminal received until `wanted` came."""
    seen = b""
    deadline_s = time.monotonic() + limit_s
    while wanted not in seen:
        assert time.monotonic() < deadline_s, seen[-400:]
        seen += os.read(terminal, 65536)
    return seen


async def test_it_runs_on_a_terminal_and_q_ends_it(path: Path) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(5))
    await server.start()
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "LINES": "40",
        "XDG_CONFIG_HOME": str(path.parent),
    }
    recording = path.with_name("seen.rec")
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "--socket", str(path), "--record", str(recording),
        stdin=its_end, stdout=its_end, stderr=its_end, env=environment,
    )  # fmt: skip
    os.close(its_end)
    await asyncio.to_thread(read_until, terminal, b"SmolLM2-135M-Instruct")
    os.write(terminal, b"q")
    async with asyncio.timeout(HANG_S):
        await asyncio.to_thread(read_until, terminal, b"\x1b[?1049l")
        assert await process.wait() == 0
    os.close(terminal)
    await server.close()
    heard = Recording(recording).message(0)
    assert isinstance(heard, Snapshot) and heard.counters == scenario.snapshot(5).counters


async def test_without_a_terminal_it_names_the_plain_frame(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "--socket", str(path),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    assert b"llmd-top -1" in err
