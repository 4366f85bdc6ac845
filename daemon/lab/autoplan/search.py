"""The search of a self-driving plan: settings simulated on what has just come, at its own times."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from daemon.base.files import write_whole
from daemon.lab.autoplan.pilot import SettingsForecast
from daemon.lab.autoplan.settings import LiveSettings
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate
from daemon.lab.planner.evaluate import Problem, WorkloadSlice, longest, rows_of
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.session import Session
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.state.slo import Slo

FINALISTS = 2
"""Settings that are simulated on the held-out slices, beside the present ones."""
HELD_OUT = 3
"""Held-out slices: spans of one run over the later half of what has come."""
LEAST_REQUESTS = 600
"""Requests to search on, at least."""
MOST_REQUESTS = 2400
"""The newest so many are searched on: a search is bounded."""
REQUESTS_EACH = 24
"""Requests to search on for each that runs or waits beside others, up to `MOST_REQUESTS`."""
LEAD_SHARE = 8
"""One in so many leads in: it fills the instances, and a run's attainment leaves it out. With
`REQUESTS_EACH` that is three times those that are there at once."""


@dataclass(frozen=True)
class SeenRequests:
    """N requests in order of arrival, as clients had them."""

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]  # delivered so far
    ended: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.bool_]  # both SLOs, of those that ended
    over: npt.NDArray[np.bool_]  # no further token comes
    stay_s: npt.NDArray[np.float64]  # from the arrival to the last token, or until now
    hash_ids: list[tuple[int, ...]] = field(default_factory=list)  # [N] or empty; of 512 tokens

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def between(self, begin_s: float, end_s: float) -> "SeenRequests":
        """Those that arrived in this time."""
        first, last = np.searchsorted(self.arrival_s, (begin_s, end_s))
        return SeenRequests(
            self.arrival_s[first:last],
            self.prompt_tokens[first:last],
            self.output_tokens[first:last],
            self.ended[first:last],
            self.kept[first:last],
            self.over[first:last],
            self.stay_s[first:last],
            self.hash_ids[first:last],
        )

    @property
    def attainment(self) -> float:
        """Share of the ended requests that kept both SLOs; 1 where none has ended."""
        return float(self.kept[self.ended].mean()) if self.ended.any() else 1.0

    @property
    def needed(self) -> int:
        """Requests that a search needs, by how many of these are there at once (Little's law): on
        fewer no queue has time to build that settings cannot keep up with.
        """
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        at_once = float(self.stay_s.sum()) / span_s if span_s > 0.0 else 0.0
        return int(min(MOST_REQUESTS, max(LEAST_REQUESTS, REQUESTS_EACH * at_once)))

    def likely_tokens(self) -> npt.NDArray[np.int32]:
        """The tokens of answers, where all are over. One that is under way, or had no token, is as
        long as one that is over, in turn: without those that wait, an overload would look light.
        """
        tokens = self.output_tokens.copy()
        whole = np.flatnonzero(self.over & (tokens > 0))
        rest = np.flatnonzero(~self.over | (tokens == 0))
        if whole.size:
            others = self.output_tokens[whole[np.arange(rest.size) % whole.size]]
            tokens[rest] = np.maximum(tokens[rest], others)
        return tokens

    def write(self, path: Path) -> int:
        """Write them as a Mooncake trace; how many there are. None, where none has a token."""
        tokens = self.likely_tokens()
        lines = [
            json.dumps(
                {
                    "timestamp": 1000.0 * float(self.arrival_s[row] - self.arrival_s[0]),
                    "input_length": int(self.prompt_tokens[row]),
                    "output_length": int(tokens[row]),
                    "hash_ids": self.hash_ids[row] if self.hash_ids else (),
                }
            )
            for row in np.flatnonzero(tokens > 0)
        ]
        write_whole(path, ("\n".join(lines) + "\n").encode())
        return len(lines)


class SettingsSearch:
    """Forecasts of settings on equal instances of one profile; traces go into `folder`."""

    def __init__(
        self,
        unit: CandidatePool,
        knobs: Knobs,
        slo: Slo,
        folder: Path,
        session: Session | None = None,
        limits: ScenarioLimits = ScenarioLimits(),  # noqa: B008
    ) -> None:
        self._unit, self._knobs, self._slo = unit, knobs, slo
        self._folder, self._session = folder, session or Session()
        self._limits = limits
        self._traces = 0

    @property
    def requests(self) -> int:
        """Requests that all searches have simulated."""
        return self._session.requests

    def forecasts(
        self,
        seen: SeenRequests,
        present: LiveSettings,
        others: Sequence[LiveSettings],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> list[SettingsForecast]:
        """The present settings and the best others, on slices that the search has not seen; none
        where too few requests have come, or the search is cancelled.

        The slices are spans of one run: what queues behind one is there in the next. A run begins
        empty, so its first requests lead in.
        """
        first = max(0, len(seen) - MOST_REQUESTS)
        newest = seen.between(float(seen.arrival_s[first]), np.inf) if len(seen) else seen
        problem, count = self._problem(newest)
        if count < seen.needed:
            return []
        half, lead = count // 2, count // LEAD_SHARE
        searched = WorkloadSlice(0, half, lead=lead)
        held_out = WorkloadSlice(half - lead, count - half + lead, lead=lead, parts=HELD_OUT)
        tried: dict[LiveSettings, float] = {}
        for settings in (present, *others):
            if is_cancelled():
                return []
            tried[settings] = self._shares(problem, settings, searched)[0]
        order = sorted(others, key=lambda each: -tried[each])
        best = [each for each in order if tried[each] > tried[present]][:FINALISTS]
        return [
            SettingsForecast(settings=each, shares=self._shares(problem, each, held_out))
            for each in (present, *best)
        ]

    def _problem(self, seen: SeenRequests) -> tuple[Problem, int]:
        self._traces += 1
        path = self._folder / f"seen-{self._traces}.jsonl"
        promised = SloClass(ttft_s=self._slo.ttft_s, tpot_s=self._slo.tpot_s)
        spec = WorkloadSpec(trace=path, classes=(promised,))
        scenario = Scenario(workload=spec, instance=(), limits=self._limits)
        goal = Goal(attainment=0.0, unserved_fraction=1.0)  # no run ends early
        return Problem(base=scenario, goal=goal), seen.write(path)

    def _shares(
        self, problem: Problem, settings: LiveSettings, part: WorkloadSlice
    ) -> tuple[float, ...]:
        """Attainment on each part of a slice, at the slice's own rate; 0 where it cannot be
        simulated.
        """
        candidate: PlanCandidate = settings.candidate(self._unit, self._knobs)
        rate = rows_of(problem, part, longest(problem, candidate)).rate
        score = self._session.evaluate(problem, candidate, rate, part)
        if score.error:
            return (0.0,) * part.parts
        return score.attainments or (score.attainment,)
