"""What is measured of a way in a cell, and when it is more than the better baseline allows."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from benchmarks.frontier.ways import BASELINES
from benchmarks.studies.frame import mean
from daemon.lab.report.report import Report


class Measure(NamedTuple):
    """A column: a measure of the report, and how far it may be above the better baseline's."""

    title: str
    field: str
    stat: str
    bound: float
    least_s: float = 0.0  # never too much

    def misses(self, value: float, base: float) -> bool:
        """Whether a value is over the bound."""
        return value > max(self.bound * base, self.least_s)


LATENCY = Measure("s/token", "normalized_latency_s", "mean", 1.03)
GAP = Measure("P99 gap", "longest_gap_s", "p99", 1.5, least_s=5.0)
MEASURES = (
    LATENCY,
    Measure("JCT", "jct_s", "mean", 1.03),
    Measure("P99 JCT", "jct_s", "p99", 1.4),
    Measure("P99 TTFT", "ttft_s", "p99", 1.25),
    GAP,
    Measure("P99 TPOT", "tpot_s", "p99", 1.5),
)


class WayFigures(msgspec.Struct, frozen=True):
    """What one way came to in a cell."""

    name: str
    values: dict[str, list[float]]  # by the measure's title, a value for each seed
    longest_gap_s: float  # of all answers of all seeds
    unfinished: int

    def value(self, measure: Measure) -> float:
        """The mean over the seeds."""
        return fmean(self.values[measure.title])


class CellFigures(msgspec.Struct, frozen=True):
    """A cell under one load, once its runs are done."""

    cell: str
    load: float  # of its capacity
    label: str  # its workload in words, of the first seed
    drawn: list[float]  # of each seed: the load that its draw had before it was stretched
    processor_s: float
    ways: list[WayFigures]

    @property
    def others(self) -> list[WayFigures]:
        """All but the baselines."""
        baselines = {one.name for one in BASELINES}
        return [one for one in self.ways if one.name not in baselines]

    def base(self, measure: Measure) -> float:
        """The better baseline's value."""
        baselines = {one.name for one in BASELINES}
        return min(one.value(measure) for one in self.ways if one.name in baselines)

    def misses(self, way: WayFigures) -> list[Measure]:
        """The measures in which a way is over its bound."""
        return [one for one in MEASURES if one.misses(way.value(one), self.base(one))]


class Results(msgspec.Struct, frozen=True):
    """All of a call."""

    seeds: list[int]
    minutes: float
    cells: list[CellFigures]

    @property
    def processor_s(self) -> float:
        """All that it took."""
        return sum(one.processor_s for one in self.cells)


def figures(name: str, reports: Sequence[Report]) -> WayFigures:
    """Of one way: a report for each seed."""
    return WayFigures(
        name,
        {
            one.title: [round(mean([it], one.field, one.stat), 5) for it in reports]
            for one in MEASURES
        },
        round(max(report.longest_gap_s.max or 0.0 for report in reports), 3),
        sum(report.requests - report.finished for report in reports),
    )
