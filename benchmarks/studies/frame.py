"""What all studies have in common: runs in the simulator, tables, and options that are lists."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import Workload


class Run(NamedTuple):
    """A simulated run."""

    report: Report
    log: RunLog


def simulated(scenario: Scenario, workload: Workload | None = None) -> Run:
    """Run a scenario, or its instances under another workload."""
    prepared = prepare(scenario, workload)
    log = run(prepared)
    return Run(report_of(prepared, log), log)


def mean(reports: Sequence[Report], measure: str, stat: str = "mean") -> float:
    """The mean over runs of a measure's mean, or of another statistic of it."""
    return statistics.fmean(getattr(getattr(report, measure), stat) or 0.0 for report in reports)


def heads(*names: str) -> None:
    """Print the first two rows of a table in Markdown."""
    row(names)
    print("|---" * len(names) + "|")


def row(cells: Iterable[object]) -> None:
    """Print a row of a table, at once: the next may take minutes."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def listed(text: str) -> list[str]:
    """The words of an option, between commas."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[float]:
    """The numbers of an option, between commas."""
    return [float(word) for word in listed(text)]
