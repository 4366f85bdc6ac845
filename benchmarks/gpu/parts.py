"""Parts of a long run, each in a process of its own: what one breaks, the others do not see.

A fault of CUDA poisons its whole process, and memory that one part holds is missed by the next.
So the parent starts `COMMAND --rows FILE` for each part; the child appends a line of JSON to FILE
for each result, and the parent reads them while it waits. A part that ends badly, or is ended for
taking too long, keeps what it had written.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Check, Figure

Row = dict[str, Any]
"""A Check or a Figure as JSON has it (`as_row`)."""

POLL_S = 0.2
PATIENCE_S = 10.0
FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended."""

    rows: list[Row]
    fault: str  # why it is not whole, in a sentence; empty where it is
    elapsed_s: float


def as_row(result: Check | Figure) -> Row:
    """What is written of a result; a check says whether it is right."""
    right = {"ok": result.ok} if isinstance(result, Check) else {}
    return asdict(result) | right


class Rows:
    """The child's side: results are on disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def append(self, result: Check | Figure) -> None:
        """Write a result down."""
        self._write(as_row(result))

    def fault(self, error: BaseException) -> None:
        """Write down why no more will come."""
        self._write({FAULT: f"{type(error).__name__}: {error}"})

    def _write(self, row: Row) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def run_part(
    command: Sequence[str],
    rows: Path,
    budget_s: float,
    env: Mapping[str, str] | None = None,
    heard: Callable[[list[Row]], None] = lambda _rows: None,
) -> Ended:
    """Run a part to its end, or end it after `budget_s`; `heard` gets its rows as they come.

    The child is the head of a session, so that processes which it started end with it.
    """
    began_s = time.monotonic()
    rows.touch()
    process = subprocess.Popen(
        [*command, "--rows", str(rows)],
        env=os.environ | dict(env or {}),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    known = 0
    try:
        while process.poll() is None and time.monotonic() - began_s < budget_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
            read = _read(rows)
            if len(read) > known:
                known = len(read)
                heard([row for row in read if FAULT not in row])
        late = process.poll() is None
    finally:
        _end(process)
    read = _read(rows)
    faults = [str(row[FAULT]) for row in read if FAULT in row]
    fault = f"ended after {budget_s:.0f} s" if late else (faults or [_exit(process)])[0]
    results = [row for row in read if FAULT not in row]
    return Ended(results, fault, time.monotonic() - began_s)


def _read(rows: Path) -> list[Row]:
    """All whole lines so far; a line that is being written is left for the next time."""
    lines = rows.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _exit(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"exit status {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then end its session; whoever of it still runs holds the device's memory."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
