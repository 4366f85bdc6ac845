"""Runs the parts of `make gpu-check` as processes, and keeps what they find."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from benchmarks.gpu.parts import Row, run_part
from benchmarks.gpu.report import Check, write
from tests.gpu.attempts import failed
from tests.gpu.check_parts import Part

RESERVED_S = 150.0
"""Seconds of the time for all parts, kept for those that run alone, at the end."""

Command = Callable[[str], Sequence[str]]
"""The command that runs one part, by its name; `--rows FILE` is added."""


def command(name: str) -> Sequence[str]:
    """The command that runs the part of this name in a process of its own."""
    return (sys.executable, "-m", "tests.gpu", "--only", name)


def run_parts(
    parts: Sequence[Part], device: str, lanes: int, total_s: float, path: Path | None
) -> int:
    """Run them, `lanes` at a time, those that must be alone at the end; the exit status."""
    run = CheckRun(device, command, path)
    ends_s = time.monotonic() + total_s
    shared, alone = ([part for part in parts if part.alone is kind] for kind in (False, True))
    shared_ends_s = ends_s - (RESERVED_S if alone else 0.0)
    with ThreadPoolExecutor(max(1, lanes)) as pool:
        list(pool.map(lambda part: run.one(part, shared_ends_s), shared))
    for part in alone:
        run.one(part, ends_s)
    return run.summary()


class CheckRun:
    """The checks of all parts as they come, printed, and written after each part."""

    def __init__(self, device: str, command: Command, path: Path | None = None) -> None:
        self._device, self._command, self._path = device, command, path
        self._began_s = time.monotonic()
        self._checks: dict[str, list[Check]] = {}
        self._writing = Lock()

    def one(self, part: Part, ends_s: float) -> None:
        """Run one part to its end, at most to `ends_s` of the clock; called on any thread."""
        shown: list[Check] = []

        def heard(rows: list[Row]) -> None:
            for row in rows[len(shown) :]:
                shown.append(_check(row))
                _say(shown[-1].line())

        left_s = min(part.budget_s, ends_s - time.monotonic())
        fault = "no time was left for it"
        elapsed_s = 0.0
        if left_s > 0:
            with TemporaryDirectory(prefix="gpu-check-") as folder:
                file = Path(folder, "rows.jsonl")
                ended = run_part(self._command(part.name), file, left_s, heard=heard)
            heard(ended.rows)
            fault, elapsed_s = ended.fault, ended.elapsed_s
        if fault or not shown:
            shown.append(failed(f"part {part.name}", fault or "it checked nothing"))
            _say(shown[-1].line())
        wrong = sum(not check.ok for check in shown)
        _say(f"     part {part.name}: {len(shown)} checks, {wrong} wrong, {elapsed_s:.0f} s")
        with self._writing:
            self._checks[part.name] = shown
            self._write()

    def summary(self) -> int:
        """Say what came of it all; 0 if everything was right, else 1."""
        checks = [check for some in self._checks.values() for check in some]
        wrong = [check for check in checks if not check.ok]
        if wrong:
            print("\nwrong:")
        for check in wrong:
            print(check.line())
        took_s = time.monotonic() - self._began_s
        print(f"{len(checks) - len(wrong)} right, {len(wrong)} wrong, {took_s:.0f} s")
        print(f"written to {self._write()}")
        return 1 if wrong or not checks else 0

    def _write(self) -> Path:
        checks = [check for some in self._checks.values() for check in some]
        return write("check", self._device, checks, self._path)


def _say(line: str) -> None:
    """Print a line whole: parts run at the same time."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _check(row: Row) -> Check:
    return Check(row["name"], row["error"], row["limit"], row["note"])
