"""`make gpu-check`'s parts as processes, without a GPU: what one breaks, the others do not see."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.gpu.parts import as_row
from benchmarks.gpu.report import Check
from daemon.engine.model.backend import torch_backend
from daemon.protocol.worker import Logprobs, Plan, Reply
from daemon.wire.columns import int32
from tests.config.driver import LARGE, build_driver, pretend
from tests.gpu.check_parts import PARTS, Part, resolved
from tests.gpu.check_run import CheckRun
from tests.gpu.device_checks import device_checks
from tests.gpu.flight_checks import different, flight_checks
from tests.gpu.swap_checks import plan as no_rows

FLOATS = np.array([-1.5], np.float32)

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


def test_numbers_of_numpy_can_be_written() -> None:
    row = json.loads(json.dumps(as_row(Check("some", np.int64(2), np.float32(1.5)))))
    assert (row["error"], row["limit"], row["ok"]) == (2.0, 1.5, False)


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


@pytest.mark.parametrize(
    ("name", "capability", "free_mib", "wrong"),
    [
        ("NVIDIA RTX 4090", (8, 9), 23_600, []),
        ("NVIDIA RTX 4080", (8, 9), 23_600, ["cuda:0 name, generation"]),
        ("NVIDIA RTX 4090", (9, 0), 23_600, ["cuda:0 name, generation"]),
        ("NVIDIA RTX 4090", (8, 9), 2_000, ["cuda:0 free memory, GiB"]),
    ],
)
def test_what_the_driver_tells_is_compared_with_what_torch_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    capability: tuple[int, int],
    free_mib: int,
    wrong: list[str],
) -> None:
    pretend(monkeypatch, build_driver(tmp_path), LARGE)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_mib << 20, 24_200 << 20))
    checks = list(device_checks("cuda:0"))
    assert [check.name for check in checks if not check.ok] == wrong and len(checks) == 5


def test_a_story_is_the_same_whether_steps_are_in_flight_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.gpu.tiny_engines.choose_backend", lambda *_: torch_backend())
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of so small steps only wait for each other
    try:
        checks = list(flight_checks("cpu", ("float32", "int8 cache"), num_plans=40, seeds=1))
    finally:
        torch.set_num_threads(num_threads)
    assert [check.ok for check in checks] == [True, True], [check.line() for check in checks]


def test_another_token_or_score_is_seen() -> None:
    plan, scores = Plan(no_rows(1), int32(), ()), Logprobs(int32([0]), FLOATS, int32(), FLOATS[:0])
    reply = Reply(1, int32([3, 4]), np.zeros(2, np.uint8), 0.1, 0.0, scores)
    later = msgspec.structs.replace(reply, elapsed_s=0.7)
    assert different([(plan, reply)], [(plan, later)]) == 0
    token = msgspec.structs.replace(reply, tokens=int32([3, 5]))
    score = msgspec.structs.replace(
        reply, logprobs=Logprobs(int32([0]), FLOATS + 1e-6, int32(), FLOATS[:0])
    )
    for other in (token, score):
        assert different([(plan, reply)], [(plan, other)]) == 1
