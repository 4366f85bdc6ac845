"""Forks that tests take for workers end as workers do: with all that they logged written."""

import logging
from pathlib import Path

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
