"""Forks that tests take for workers end as workers do: with all that they logged written."""

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.process import WorkerProcess
from tests.nursery.home import nursery

NUM_LINES = 5000


def serve(_fd: int, _links_fd: int, _spare: bool) -> int:
    """A fork's life: it says much and ends at once."""
    for line in range(NUM_LINES):
        logging.getLogger(__name__).info("line %d", line)
    return 3


def test_the_last_lines_of_a_fork_are_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        nursery(tmp_path, __name__) as quick,
        log.open("wb") as stderr,
        WorkerProcess(stderr=stderr, **quick) as worker,
    ):
        assert worker.exit_status() == 3
    lines = log.read_text().splitlines()
    assert len(lines) == NUM_LINES and lines[-1].endswith(f"line {NUM_LINES - 1}")


@pytest.mark.usefixtures("quick_python")
def test_a_program_ends_as_it_would_in_a_process_of_its_own() -> None:
    def ended(program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "a", "b"]
        return subprocess.run(command, input="told", capture_output=True, text=True)

    done = ended("import sys; print(sys.argv[1:], sys.stdin.read(), 'torch' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "['a', 'b'] told True\n")
    done = ended("raise SystemExit('a sentence')")
    assert (done.returncode, done.stderr) == (1, "a sentence\n")
    assert ended("import sys; sys.exit(3)").returncode == 3
    assert "ZeroDivisionError" in ended("1 / 0").stderr
    killed = ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -signal.SIGKILL
