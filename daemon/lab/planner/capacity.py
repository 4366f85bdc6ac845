"""Capacity: the highest arrival rate at which a scenario keeps its goal, by bisection.

The workload is built anew for each rate with the same seed: the same lengths in the same order, and
the same arrivals, closer together. `Goal` says whether a rate passes.

Verdicts need not be monotone: a finite run at a slightly higher rate may turn out better. The
search does not look for such luck. It keeps a rate that passed below one that failed and halves the
interval between, so that every tried rate up to the answer passed and every one above failed; rates
that were not tried may differ. All tried rates are in the answer.
"""

from collections.abc import Callable
from math import isclose

import msgspec

from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.goal import Goal, Trial, check_length, judge
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import about_of, report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import Scenario

WARM_UP = 0.1
"""Share of requests, from the first on, that do not count in a goal's latencies."""

_FIRST_RATE = 1.0
_MOST_STEPS = 24  # strides from the first rate


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search, and its circumstances."""

    rps: float  # 0: no rate that was tried passed
    failed_rps: float  # the lowest rate tried that failed
    limited_by: str  # the bounds that did not hold there, by the goal's names
    requests: int  # N
    warm_up_requests: int  # of them
    relative_width: float  # asked: (failed - passed) / passed, at most
    condition: str
    trials: tuple[Trial, ...]  # in order of trying
    report: Report  # of the run at `rps`, or at the lowest rate tried where that is 0

    def as_report(self) -> Report:
        """The report of the run at capacity, with how it was found."""
        found = {
            "condition": self.condition,
            "requests": self.requests,
            "warm_up_requests": self.warm_up_requests,
            "relative_width": self.relative_width,
            "failed_rps": self.failed_rps,
            "limited_by": self.limited_by,
            "rates_tried": msgspec.to_builtins(self.trials),
        }
        return msgspec.structs.replace(self.report, capacity_rps=self.rps, capacity=found)


def find_capacity(
    scenario: Scenario,
    goal: Goal,
    relative_width: float = 0.02,
    progress: Callable[[Trial], None] | None = None,
    stride: float = 2.0,
) -> Capacity:
    """Bracket from the workload's rate (or 1) by steps of `stride` (> 1), then bisect.

    Where that rate is near the answer, a short stride tries fewer rates. `progress` receives every
    trial. Raises PlannerError where the workload has no rate, is too short, or passes at every
    rate; and whatever `prepare` and `run` raise.
    """
    search = _Search(scenario, goal, relative_width, stride, progress)
    passed, failed = highest_rate(
        search.sustains,
        scenario.workload.rate or _FIRST_RATE,
        relative_width,
        stride,
        search.changes_nothing,
    )
    return search.found(passed, failed)


def highest_rate(
    sustains: Callable[[float], bool],
    rate: float,
    relative_width: float,
    stride: float,
    is_hopeless: Callable[[], bool] = lambda: False,
) -> tuple[float, float]:
    """A rate that passed, and one that failed at most `relative_width` above it; (0, r) where none
    passed down to r.

    `is_hopeless` is asked after two failures, and True ends the way down. Raises PlannerError where
    every rate passes.
    """
    passed, failed = _bracket(sustains, rate, stride, is_hopeless)
    while passed and failed / passed > 1.0 + relative_width:
        middle = (passed + failed) / 2
        passed, failed = (middle, failed) if sustains(middle) else (passed, middle)
    return passed, failed


def _bracket(
    sustains: Callable[[float], bool], rate: float, stride: float, is_hopeless: Callable[[], bool]
) -> tuple[float, float]:
    if sustains(rate):
        for _ in range(_MOST_STEPS):
            if not sustains(stride * rate):
                return rate, stride * rate
            rate *= stride
        raise PlannerError(f"capacity: even {rate:g} requests/s pass; the goal bounds nothing")
    for _ in range(_MOST_STEPS):
        failed, rate = rate, rate / stride
        if sustains(rate):
            return rate, failed
        if is_hopeless():
            break
    return 0.0, rate


class _Search:
    """The rates tried so far, and the best run among them."""

    def __init__(
        self,
        scenario: Scenario,
        goal: Goal,
        relative_width: float,
        stride: float,
        progress: Callable[[Trial], None] | None,
    ) -> None:
        if scenario.workload.arrivals == "closed":
            raise PlannerError("capacity: closed arrivals have no rate to search; use poisson")
        if not 0.0 < relative_width < 1.0:
            raise PlannerError(f"capacity: the width must be in (0, 1), got {relative_width}")
        if not stride > 1.0:
            raise PlannerError(f"capacity: the stride must be above 1, got {stride}")
        self._scenario = scenario
        self._goal = goal
        self._width = relative_width
        self._progress = progress
        self._trials: list[Trial] = []
        self._warm_up = 0
        self._condition = ""
        self._best: Report | None = None

    def sustains(self, rate_rps: float) -> bool:
        """Simulate at a rate and judge it."""
        spec = msgspec.structs.replace(self._scenario.workload, rate=rate_rps, rate_scale=0.0)
        prepared = prepare(msgspec.structs.replace(self._scenario, workload=spec))
        if not self._trials:
            check_length(prepared, self._goal)
            self._condition = self._goal.words(self._goal.promises(about_of(prepared).classes))
            self._warm_up = int(len(prepared.workload) * WARM_UP) * self._scenario.n
        log = run(prepared)
        report = report_of(prepared, log)
        trial = judge(prepared, log, report, self._goal, self._warm_up)
        self._trials.append(trial)
        if trial.sustained or not any(earlier.sustained for earlier in self._trials):
            self._best = report
        if self._progress is not None:
            self._progress(trial)
        return trial.sustained

    def changes_nothing(self) -> bool:
        """Whether requests do not overlap any more, so that slower arrivals change nothing."""
        return _alike(*self._trials[-2:])

    def found(self, passed: float, failed: float) -> Capacity:
        """The answer."""
        if self._best is None:
            raise PlannerError("capacity: no rate was tried")
        at_failed = next(trial for trial in self._trials if trial.rate_rps == failed)
        return Capacity(
            rps=passed,
            failed_rps=failed,
            limited_by=", ".join(at_failed.failed),
            requests=self._best.requests,
            warm_up_requests=self._warm_up,
            relative_width=self._width,
            condition=self._condition,
            trials=tuple(self._trials),
            report=self._best,
        )


def _alike(a: Trial, b: Trial) -> bool:
    """Whether two trials measured the same, but for rounding."""
    return all(
        x == y if x is None or y is None else isclose(x, y, rel_tol=1e-6)
        for x, y in (
            (a.unserved_tokens_fraction, b.unserved_tokens_fraction),
            (a.normalized_latency_s, b.normalized_latency_s),
            (a.p99_normalized_latency_s, b.p99_normalized_latency_s),
            (a.p99_queueing_s, b.p99_queueing_s),
            (a.attainment, b.attainment),
        )
    )
