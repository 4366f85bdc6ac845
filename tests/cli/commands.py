"""`llmd` and `llmd-top` as processes of their own, as a shell starts them."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tests.hangs import HANG_S

LLMD = (sys.executable, "-m", "daemon.cli.main")
LLMD_TOP = (sys.executable, "-m", "tui.app")
TIMEOUT_S = HANG_S


def start(
    command: tuple[str, ...],
    *words: str,
    stdout: int | IO[Any] = subprocess.PIPE,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """A command with folders of its own where one is given, in a process group of its own."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # These tests are a shell's background job: what is ignored would be inherited as such.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "COLUMNS": "80"}
    if folder is not None:
        environment |= {"XDG_RUNTIME_DIR": str(folder), "STATE_DIRECTORY": str(folder)}
    return subprocess.Popen(
        [*command, *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def closed_pipe() -> int:
    """The writing end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def children(pid: int) -> list[int]:
    """Its children, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
