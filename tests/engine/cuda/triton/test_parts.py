"""Parts of a run as child processes: what they wrote is kept, however they end."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.parts import Rows, as_row, run_part
from benchmarks.gpu.report import Check, Figure
from benchmarks.gpu.speed.bench_parts import PARTS
from benchmarks.gpu.speed.limits import Limits
from benchmarks.gpu.speed.results import GOALS, Results
from benchmarks.gpu_bench import left_out, limits_of
from tests.hangs import HANG_S

CHILD = """
import json, os, sys, time
path = sys.argv[sys.argv.index("--rows") + 1]
with open(path, "a") as file:
    file.write(json.dumps({"name": "first"}) + "\\n")
    file.write('{"name": "half a li')
"""


def run(tmp_path: Path, ending: str, budget_s: float = 20.0) -> tuple[list[str], str]:
    """Names of the rows that a child left, and why it is not whole."""
    command = [sys.executable, "-c", CHILD + ending]
    ended = run_part(command, tmp_path / "rows", budget_s)
    return [row["name"] for row in ended.rows], ended.fault


@pytest.mark.parametrize(
    ("ending", "fault"),
    [
        ("", ""),
        ("sys.exit(3)", "exit status 3"),
        ("os.kill(os.getpid(), 11)", "died of SIGSEGV"),
        (
            "open(path, 'w').write(json.dumps({'name': 'first'}) + '\\n{\"fault\": \"why\"}\\n')",
            "why",
        ),
    ],
)
def test_what_a_part_wrote_is_kept(tmp_path: Path, ending: str, fault: str) -> None:
    assert run(tmp_path, ending) == (["first"], fault)


def test_a_part_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    ending = (
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    assert run(tmp_path, ending, budget_s=1.0) == (["first"], "ended after 1 s")
    child = Path("/proc", pid_file.read_text(), "stat")
    deadline_s = time.monotonic() + HANG_S
    while child.exists() and child.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline_s, "a part's own child outlived it"
        time.sleep(0.05)


def test_rows_are_told_while_a_part_runs(tmp_path: Path) -> None:
    heard: list[int] = []
    command = [sys.executable, "-c", CHILD + "time.sleep(0.5)"]
    run_part(command, tmp_path / "rows", 20.0, heard=lambda rows: heard.append(len(rows)))
    assert heard == [1]


def test_a_child_writes_what_a_parent_reads(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows")
    rows.append(Check("right", 1.0, 2.0))
    rows.append(Figure("fast", 3.0, "s", raw={"s": [1.0]}))
    rows.fault(ValueError("no"))
    written = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert written[0]["ok"] is True
    assert written[1]["raw"] == {"s": [1.0]}
    assert written[2] == {"fault": "ValueError: no"}


def test_fractions_and_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = Results({"device": "A card"}, path, dry=False)
    rows = [
        as_row(Figure("swap out", 9.0, "GB/s", 10.0, key="swap")),
        as_row(Figure("swap in", 8.0, "GB/s", 10.0, key="swap")),
        as_row(Figure("no limit", 8.0, "GB/s")),
    ]
    results.heard("swap", rows)
    results.ended("swap", 1.0, "")
    results.ended("handoff", 0.0, "no time was left")
    results.ended("prefill", 2.0, "")
    document = json.loads(path.read_text())
    assert document["fractions"] == {"swap": 0.8}
    assert set(document["missing"]) == set(GOALS) - {"swap"}
    assert document["missing"]["handoff"] == "part handoff: no time was left"
    assert document["missing"]["prefill_4k"] == "part prefill: it did not measure this"
    assert document["missing"]["decode_b1"] == "part decode did not run"
    assert [row["part"] for row in document["rows"]] == ["swap"] * 3
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_why_a_part_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Limits(1e12, 1e14)
    assert left_out("limits", 100.0, Limits(0.0, 0.0)) == ""
    assert left_out("decode", 100.0, known) == ""
    assert left_out("decode", 5.0, known) == "no time was left"
    assert left_out("decode", 100.0, Limits(0.0, 0.0)) == "the device's limits were not measured"
    lacking = replace(PARTS["decode"], needs=("torch", "no_such_package"))
    monkeypatch.setitem(PARTS, "decode", lacking)
    assert left_out("decode", 100.0, known) == "not installed: no_such_package (make gpu-wheels)"


def test_limits_are_the_best_of_what_was_measured() -> None:
    rows = [
        as_row(Figure("copy, read + write", 4300.0, "GB/s")),
        as_row(Figure("bf16 matmul 8 x 8 x 8", 700.0, "TFLOP/s")),
        as_row(Figure("bf16 matmul, best", 780.0, "TFLOP/s")),
    ]
    assert limits_of(rows) == Limits(4.3e12, 780e12, 0.0, 0.0)
    assert limits_of([]) == Limits(0.0, 0.0)
