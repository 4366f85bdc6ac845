"""`make test` fails where a suite fails, and counts what pytest counted."""

from pathlib import Path

import pytest

from tests import run_suites

TEXTS = {
    "good": "def test_a(): pass\ndef test_b(): pass\n",
    "good/inner": "def test_a(): pass\n",
    "good/part": "def test_a(): pass\n",
    "mixed": "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('x')\n"
    "def test_c(): assert 0\n",
    "broken": "import no_such_module\n",
    "killed": "import os\ndef test_a(): os._exit(0)\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for suite, text in TEXTS.items():
        (tmp_path / suite).mkdir()
        (tmp_path / suite / "__init__.py").touch()
        (tmp_path / suite / "test_it.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each would import them all
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")
    monkeypatch.setattr(run_suites, "TESTS", tmp_path)
    monkeypatch.setattr(run_suites, "BUDGETS_S", {"mixed": 9.0, "good": 9.0, "good/inner": 9.0})
    return tmp_path


def test_suites_come_in_the_order_of_the_table(folder: Path) -> None:
    assert run_suites.suites() == ["mixed", "good", "good/inner", "broken", "killed"]


def test_failures_skips_and_crashes_are_counted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_suites.main([]) == 1
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == "5 passed, 3 failed, 1 skipped"
    table = {line.split()[0]: line for line in out.splitlines() if line.startswith(tuple(TEXTS))}
    assert "FAILED" in table["mixed"]
    assert "FAILED" not in table["good"]
    assert table["good"].split()[1] == "3"  # a part is run with it, a suite in it is not
    assert table["good/inner"].split()[1] == "1"
    assert "FAILED" in table["broken"] and "no stated budget" in table["broken"]
    assert "FAILED" in table["killed"]


def outcome(suite: str, cpu_s: float) -> run_suites.Outcome:
    return run_suites.Outcome(suite, 1, 0, 0, cpu_s, cpu_s, True)


@pytest.mark.parametrize("speed", [0.5, 1.0, 7.0])
@pytest.mark.parametrize(("taken_s", "dear"), [(125.0, set()), (129.0, {"mixed"})])
def test_a_suite_is_too_dear_at_the_run_s_own_speed(
    monkeypatch: pytest.MonkeyPatch, speed: float, taken_s: float, dear: set[str]
) -> None:
    monkeypatch.setattr(run_suites, "BUDGETS_S", {"mixed": 80.0, "good": 800.0})
    times = {"mixed": taken_s, "good": 800.0, "new": 50.0}
    found = [outcome(suite, speed * cpu_s) for suite, cpu_s in times.items()]
    assert run_suites.too_dear(found) == dear


@pytest.mark.parametrize("speed", [0.5, 1.0])
@pytest.mark.parametrize(("over_s", "dear"), [(9.5, set()), (10.5, {"short"})])
def test_a_short_suite_is_too_dear_by_seconds(
    monkeypatch: pytest.MonkeyPatch, speed: float, over_s: float, dear: set[str]
) -> None:
    """By whole seconds on a fast machine too: 8 s are fine for 12 at a speed of 0.44."""
    monkeypatch.setattr(run_suites, "BUDGETS_S", {"short": 1.0, "good": 8000.0})
    found = [outcome("short", speed * 1.0 + over_s), outcome("good", speed * 8000.0)]
    assert run_suites.too_dear(found) == dear


@pytest.mark.parametrize(("model", "status"), [("1", 1), ("17", 0)])
def test_a_dear_suite_fails_the_run_on_the_processor_of_the_budgets(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    model: str,
    status: int,
) -> None:
    monkeypatch.setattr(run_suites, "LEAST_OVER_S", 0.0)
    monkeypatch.setattr(run_suites, "CPUINFO", folder / "cpuinfo")
    fields = f"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {model}\n\n"
    (folder / "cpuinfo").write_text(fields * 2, encoding="utf-8")
    assert run_suites.main(["good"]) == 0  # a suite alone is what the run is
    monkeypatch.setitem(run_suites.BUDGETS_S, "good", 0.01)
    monkeypatch.setitem(run_suites.BUDGETS_S, "good/inner", 900.0)
    assert run_suites.main(["good", "good/inner"]) == status
    rows = [line for line in capfd.readouterr().out.splitlines() if line.startswith("good ")]
    assert "over 1.5 times" not in rows[0] and "over 1.5 times" in rows[1]
    assert ("FAILED" in rows[1]) == bool(status)


def test_a_name_of_no_suite_is_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lab` holds suites and is none: nothing of it would run, and that would pass."""
    (folder / "around" / "inner").mkdir(parents=True)
    assert run_suites.main(["good", "around"]) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith("no suite: around; there are mixed, good, good/inner, ")
    assert "passed" not in streams.out
