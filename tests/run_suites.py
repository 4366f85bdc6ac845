"""Runs every suite in a process of its own and shows what it costs beside its stated budget.

A suite is a folder of the table below, without the folders in it that are suites themselves.
Two suites run at a time, each on a half of the cores, the longest first; beside them, one after the
other and on all cores, those that wait half of their time. A budget is processor time, of the suite
and of the processes that it starts, so that waits do not count. Processors differ, and so does what
neighbours leave of their caches: a budget is compared at the whole run's own speed, which is all
processor time over all budgets. A suite that takes `MOST_OVER` times its budget so, and
`LEAST_OVER_S` more, is marked; it fails the run on the processor of the budgets alone, because
single suites differ by a factor of 1.6 between processors. Usage:
`python -m tests.run_suites [SUITE ...]`. With LLMD_SOAK=1 the long forms run, without a budget.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.soak import SOAK

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
TEST_LIMIT_S = 3600 if SOAK else 400
SUITE_LIMIT_S = 4 * 3600 if SOAK else 1500
"""A test that hangs is ended; a machine half as fast as the one of the budgets is none."""

BUDGETS_S: dict[str, float] = {
    "house": 28,
    "config": 5,
    "cli": 112,
    "wire": 2,
    "memory": 5,
    "placement": 15,
    "scheduler": 33,
    "core": 120,
    "journal": 22,
    "control": 2,
    "length_models": 40,
    "predictor": 23,
    "lab/profiles": 4,
    "lab/workload": 3,
    "lab/report": 10,
    "lab/simulator": 108,
    "lab/planner": 60,
    "lab/autoplan": 32,
    "lab/bench": 3,
    "lab/profiler": 38,
    "engine/sampler": 17,
    "engine/cuda/triton": 120,
    "gpu": 4,  # of its start alone: `make test` leaves it out
    "models": 20,
    "engine": 300,
    "runtime": 12,
    "power": 7,
    "powerd": 8,
    "supervisor": 51,
    "cluster": 16,
    "api": 110,
    "tui": 88,
    "examples": 5,
    "install": 16,
    "zoo": 50,
    "chaos": 66,
    "e2e": 195,
}
"""Seconds of one core, as measured on two of an AMD EPYC (`BUDGETS_OF`) that did little else."""
BUDGETS_OF = {"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "1"}
"""The processor of the budgets, by fields of `CPUINFO`."""
CPUINFO = Path("/proc/cpuinfo")
POLL_S = 0.05
MOST_OVER = 1.5
"""How many times its budget a suite may take, at the run's speed."""
LEAST_OVER_S = 10.0
"""Seconds over its budget at the run's speed that a suite may take: small suites are the start of
Python and of a few processes, whose cost a neighbour can double."""

SCREENSHOTS = frozenset({"tui"})
"""Suites that use pytest's plugins for screenshots."""
NO_PLUGINS = ("-p", "no:anyio", "-p", "no:platformdirs")
NO_SCREENSHOTS = ("-p", "no:textual-snapshot", "-p", "no:syrupy")
"""What pytest would import for every suite, for no test of it."""

SOAKED = frozenset({"gpu"})
"""Suites of which `make test` runs no test."""

LANES = 2
WAITERS = frozenset({"api", "supervisor", "tui"})
"""Suites of timeouts and silences: cores of their own would be idle for half of their time."""


class Outcome(NamedTuple):
    """The result of one suite."""

    suite: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    cpu_s: float
    ok: bool


def suites() -> list[str]:
    """The folders that hold tests, those of the table first and in its order."""
    folders = {path.parent.relative_to(TESTS) for path in TESTS.glob("*/**/test_*.py")}
    found = {suite_of(folder) for folder in folders}
    return [name for name in BUDGETS_S if name in found] + sorted(found - set(BUDGETS_S))


def suite_of(folder: Path) -> str:
    """The innermost folder of the table that a folder is in; one that is in none is a suite."""
    around = (str(one) for one in (folder, *folder.parents))
    return next((name for name in around if name in BUDGETS_S), str(folder))


def run_suite(suite: str, cores: frozenset[int]) -> Outcome:
    """Run one folder's tests on these cores; what pytest printed is shown when they are done."""
    with tempfile.TemporaryDirectory(prefix="llmd-suite-") as folder:
        report, output = Path(folder, "report.xml"), Path(folder, "output")
        command = [sys.executable, "-m", "pytest", "-q", f"--timeout={TEST_LIMIT_S}"]
        command += [f"--junitxml={report}", *NO_PLUGINS]
        command += NO_SCREENSHOTS if suite not in SCREENSHOTS else ()
        inner = [name for name in BUDGETS_S if name.startswith(f"{suite}/")]
        command += [str(TESTS / suite), *(f"--ignore={TESTS / name}" for name in inner)]
        started_s = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=_env())
            os.sched_setaffinity(process.pid, cores)
            status, cpu_s = _end_of(process)
        seconds = time.monotonic() - started_s
        passed, failed, skipped = _counts(report)
        whole = report.exists()  # a suite that ends its own process leaves no report
        print(f"\n=== {suite}\n{output.read_text(errors='replace')}", end="", flush=True)
    ok = whole and status in (0, 5) and not failed  # 5: every test of the suite is deselected
    return Outcome(suite, passed, failed if ok else max(failed, 1), skipped, seconds, cpu_s, ok)


def _env() -> dict[str, str]:
    """Ours, but bytecode is kept: a hundred processes would each compile all that they import."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _end_of(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Exit status and processor seconds of a process, which is killed at SUITE_LIMIT_S.

    Its children's seconds count where it has waited for them.
    """
    deadline_s = time.monotonic() + SUITE_LIMIT_S
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline_s:
            process.kill()
        time.sleep(POLL_S)


def lanes() -> list[frozenset[int]]:
    """The cores that this process may use, dealt out; one lane where there is one core."""
    cores = sorted(os.sched_getaffinity(0))
    count = min(LANES, len(cores))
    return [frozenset(cores[lane::count]) for lane in range(count)]


def run_all(wanted: list[str]) -> dict[str, Outcome]:
    """Each lane takes the longest suite that is left to it, until none is."""
    longest_first = sorted(wanted, key=lambda name: -BUDGETS_S.get(name, 0))
    waiters = [name for name in longest_first if name in WAITERS]
    others = [name for name in longest_first if name not in WAITERS]
    found: dict[str, Outcome] = {}

    def work(left: list[str], cores: frozenset[int]) -> None:
        while left:
            suite = left.pop(0)
            found[suite] = run_suite(suite, cores)

    with ThreadPoolExecutor(LANES + 1) as pool:
        dealt = [(others, cores) for cores in lanes()]
        dealt.append((waiters, frozenset(os.sched_getaffinity(0))))
        list(pool.map(lambda lane: work(*lane), dealt))
    return found


def too_dear(outcomes: list[Outcome]) -> set[str]:
    """Suites that take too much of the run's processor time for their budgets.

    At the run's own speed: a machine half as fast takes twice as long in every suite. So a single
    suite is never too dear, nor one without a budget.
    """
    stated = {outcome.suite: outcome.cpu_s for outcome in outcomes if outcome.suite in BUDGETS_S}
    budget_s = sum(BUDGETS_S[suite] for suite in stated)
    speed = sum(stated.values()) / budget_s if budget_s else 1.0
    at_speed_s = {suite: speed * BUDGETS_S[suite] for suite in stated}
    return {suite for suite, cpu_s in stated.items() if cpu_s > _most_s(at_speed_s[suite])}


def _most_s(budget_s: float) -> float:
    return max(MOST_OVER * budget_s, budget_s + LEAST_OVER_S)


def is_processor_of_budgets(cpuinfo: str) -> bool:
    """Whether this text of /proc/cpuinfo describes the processor that the budgets come from."""
    pairs = (line.partition(":") for line in cpuinfo.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    return BUDGETS_OF.items() <= fields.items()


def main(names: list[str]) -> int:
    """Run the named suites, or all; 1 if any failed, 2 if a name is of no suite."""
    known = suites()
    if strange := sorted(set(names) - set(known)):
        print(f"no suite: {', '.join(strange)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    wanted = names or [name for name in known if SOAK or name not in SOAKED]
    began_s = time.monotonic()
    found = run_all(wanted)
    outcomes = [found[name] for name in wanted]
    dear = set[str]() if SOAK else too_dear(outcomes)
    binding = is_processor_of_budgets(CPUINFO.read_text())
    print(_table(outcomes, dear, binding))
    print(f"{'from start to end':<43}{time.monotonic() - began_s:>9.1f}")
    passed = sum(outcome.passed for outcome in outcomes)
    failed = sum(outcome.failed for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if all(outcome.ok for outcome in outcomes) and not (dear and binding) else 1


def _counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report; zeros where pytest wrote none."""
    if not report.exists():
        return 0, 0, 0
    total = failed = skipped = 0
    for suite in ET.parse(report).getroot().iter("testsuite"):
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def _table(outcomes: list[Outcome], dear: set[str], binding: bool) -> str:
    heads = ("passed", "failed", "skipped", "seconds", "cpu", "budget")
    lines = [f"\n{'suite':<16}{''.join(f'{head:>9}' for head in heads)}"]
    for outcome in outcomes:
        budget = BUDGETS_S.get(outcome.suite)
        note = "" if outcome.ok else "  FAILED"
        if budget is None:
            note += "  no stated budget"
        elif outcome.suite in dear:
            note += "  FAILED:" if binding else "  to look at:"
            note += f" over {MOST_OVER} times its budget at this run's speed"
        lines.append(
            f"{outcome.suite:<16}{outcome.passed:>9}{outcome.failed:>9}{outcome.skipped:>9}"
            f"{outcome.seconds:>9.1f}{outcome.cpu_s:>9.1f}{budget or 0:>9.0f}{note}"
        )
    seconds = sum(outcome.seconds for outcome in outcomes)
    budget = sum(BUDGETS_S.get(outcome.suite, 0) for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    lines.append(f"{'all':<43}{seconds:>9.1f}{cpu_s:>9.1f}{budget:>9.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
