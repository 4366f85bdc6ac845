"""`gpu_check`'s parts as processes, without a GPU: what one breaks, the others do not see."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu.check_parts import PARTS, Part, resolved
from benchmarks.gpu.check_run import CheckRun

CHILD = """
import json, os, sys, time
path, what = sys.argv[sys.argv.index("--rows") + 1], sys.argv[1]

def append(**row):
    with open(path, "a") as file:
        file.write(json.dumps(row) + chr(10))

append(name="right", error=0.5, limit=1.0, note="note", ok=True)
if what == "wrong":
    append(name="wrong", error=float("nan"), limit=1.0, note="", ok=False)
if what == "crash":
    os.abort()
if what == "raise":
    append(fault="ValueError: said why")
    sys.exit(1)
if what == "hang":
    time.sleep(60)
"""


def command(name: str) -> Sequence[str]:
    return (sys.executable, "-c", CHILD, name)


def run(path: Path, parts: list[Part]) -> int:
    checks = CheckRun("cpu", command, path)
    for part in parts:
        checks.one(part, float("inf"))
    return checks.summary()


def test_what_is_right_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "check.json", [Part("fine", (), 30)]) == 0
    assert "ok   right" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert row == {"name": "right", "error": 0.5, "limit": 1.0, "note": "note", "ok": True}


@pytest.mark.parametrize(
    ("what", "said"),
    [("crash", "SIGABRT"), ("raise", "ValueError: said why"), ("hang", "ended after 2 s")],
)
def test_a_part_that_breaks_keeps_what_it_found(tmp_path: Path, what: str, said: str) -> None:
    budget_s = 2 if what == "hang" else 30
    assert run(tmp_path / "check.json", [Part(what, (), budget_s), Part("fine", (), 30)]) == 1
    rows = json.loads((tmp_path / "check.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["right", f"part {what}", "right"]
    assert said in rows[1]["note"] and not rows[1]["ok"]


def test_a_wrong_check_is_wrong(tmp_path: Path) -> None:
    assert run(tmp_path / "check.json", [Part("wrong", (), 30)]) == 1


def test_no_time_left_is_not_right(tmp_path: Path) -> None:
    checks = CheckRun("cpu", command, tmp_path / "check.json")
    checks.one(Part("fine", (), 30), 0.0)
    assert checks.summary() == 1


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_there(part: Part) -> None:
    for function in part.functions:
        assert callable(resolved(function))
