"""A stage of an installation: a line for people, a bar on a terminal, a log, and what failed."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.stage import COLLECTED, TAIL_LINES, Progress
from tests.hangs import HANG_S
from tests.house.source import ROOT

STAGE = [sys.executable, str(ROOT / "scripts" / "stage.py")]
TOLD = "import sys, time\nfor one in range(30): print('line', one)\n"
TALKS = (
    f"{TOLD}print('progress 0.50 weights', flush=True)\ntime.sleep(0.6)\nprint('note: for CPUs')"
)
FAILS = f"{TOLD}print('no such package', file=sys.stderr)\nsys.exit(3)"


def stage(log: Path, code: str) -> "subprocess.CompletedProcess[str]":
    command = [*STAGE, str(log), "some stage", sys.executable, "-u", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def test_a_stage_is_one_line_and_its_notes_and_all_else_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    done = stage(log, TALKS)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"some stage \.\.\. done after \d+ s\n  for CPUs\n", done.stdout)
    stage(log, "print('more')")
    kept = log.read_text()
    assert kept.count("== some stage: ") == 2 and "line 0\nline 1\n" in kept and "more\n" in kept


def test_a_failure_shows_the_end_of_the_log_and_names_it(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    done = stage(log, FAILS)
    assert done.returncode == 3 and "failed after" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == TAIL_LINES + 1
    assert lines[-2:] == ["  | no such package", f"all that was said is in {log}"]


def test_a_terminal_gets_a_bar_that_goes_when_the_stage_ends(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*STAGE, str(tmp_path / "log"), "some stage", sys.executable, "-c", TALKS]
    env = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:
                break
            seen += data
    os.close(ours)
    assert process.returncode == 0
    text = seen.decode()
    assert "some stage  [############............]  50%" in text and "weights" in text
    assert re.search(r"\r\x1b\[Ksome stage: done after \d+ s\r\n  for CPUs\r\n$", text)


def test_progress_follows_pip(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    for name in ("torch==2.13.0", "jinja2>=3.1"):
        progress.hear(f"Collecting {name} (from x)")
    assert 0.0 < progress.share < COLLECTED and progress.words == "jinja2"
    progress.hear("Installing collected packages: torch, Jinja2, a_b")
    assert progress.share == COLLECTED
    (tmp_path / "a_b-1.0.dist-info").mkdir()
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    progress.look()
    assert progress.share == pytest.approx(COLLECTED + (1 - COLLECTED) * 2 / 3)
