"""The search of a self-driving plan: settings simulated on what has just come, at its own times."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
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
LEAST_REQUESTS = 200
"""Requests of a load to search on, at least."""
STAYS = 6
"""As many times those that are there at once are needed too, up to `MOST_REQUESTS`."""
LEAST_ANSWERS = 50
"""Answers that are over: their lengths are those of answers that are not."""
MOST_REQUESTS = 2400
"""The newest so many are searched on, and no run has more: a search is bounded."""
LEAST_RUN, RUN_EACH = 600, 24
"""Requests of both halves' runs: at least, and for each that is there at once. On fewer no queue
has time to build that settings cannot keep up with, so each half repeats what has come.
"""
LEAD_SHARE = 8
"""One in so many leads in: it fills the instances, and a run's attainment leaves it out. With
`RUN_EACH` that is three times those that are there at once."""


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
        return self._rows(slice(first, last))

    def _rows(self, rows: slice | npt.NDArray[np.intp]) -> "SeenRequests":
        """Some of them."""
        index = np.arange(len(self))[rows]
        columns = {
            each.name: getattr(self, each.name)[rows]
            for each in fields(self)
            if each.name != "hash_ids"
        }
        ids = [self.hash_ids[row] for row in index.tolist()] if self.hash_ids else []
        return SeenRequests(**columns, hash_ids=ids)

    @property
    def attainment(self) -> float:
        """Share of the ended requests that kept both SLOs; 1 where none has ended."""
        return float(self.kept[self.ended].mean()) if self.ended.any() else 1.0

    def judged(self, slo: Slo, now: float) -> "SeenRequests":
        """Those that have ended and came at least as long ago as the SLOs let them stay: of newer
        ones only the short and the late have ended.
        """
        had_time = now - self.arrival_s >= self.promised_s(slo)
        return self._rows(np.flatnonzero(self.ended & had_time))

    def promised_s(self, slo: Slo) -> npt.NDArray[np.float64]:
        """The longest that each may stay within the SLOs."""
        return slo.ttft_s + slo.tpot_s * self.likely_tokens().astype(np.float64)

    def at_once(self, slo: Slo) -> float:
        """The mean number that is there at once (Little's law), each for no longer than the SLOs
        let it stay: a backlog grows under settings that do not keep up.
        """
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0
        stay_s = np.minimum(self.stay_s, self.promised_s(slo))
        return float(stay_s.sum()) / span_s if span_s > 0.0 else 0.0

    def lacking(self, slo: Slo) -> int:
        """Requests that a search needs beyond these; answers, where only those are too few."""
        needed = min(MOST_REQUESTS, max(LEAST_REQUESTS, STAYS * self.at_once(slo)))
        num_answers = np.count_nonzero(self.over & (self.output_tokens > 0))
        return max(0, int(needed) - len(self), LEAST_ANSWERS - int(num_answers))

    def repeated(self, count: int) -> "SeenRequests":
        """As many as `count`, in turns at the same mean rate that share no prompts."""
        turns = np.arange(count) // max(1, len(self))
        found = self._rows(np.resize(np.arange(len(self)), count))
        ids = self._num_ids
        return replace(
            found,
            arrival_s=found.arrival_s + turns * self._turn_s,
            hash_ids=[
                tuple(key + turn * ids for key in row)
                for row, turn in zip(found.hash_ids, turns.tolist(), strict=False)
            ],
        )

    def then(self, other: "SeenRequests") -> "SeenRequests":
        """These and those, one mean gap later, which share no prompt."""
        later_s = float(self.arrival_s[0]) + self._turn_s - float(other.arrival_s[0])
        columns = {
            each.name: np.concatenate([getattr(self, each.name), getattr(other, each.name)])
            for each in fields(self)
            if each.name not in ("arrival_s", "hash_ids")
        }
        times_s = np.concatenate([self.arrival_s, other.arrival_s + later_s])
        ids = self._num_ids
        rows = [tuple(key + ids for key in row) for row in other.hash_ids]
        return SeenRequests(arrival_s=times_s, **columns, hash_ids=[*self.hash_ids, *rows])

    @property
    def _turn_s(self) -> float:
        """From the first to one that would come a mean gap behind the last."""
        if len(self) < 2:
            return 0.0
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return span_s * len(self) / (len(self) - 1)

    @property
    def _num_ids(self) -> int:
        """A number above all ids."""
        return 1 + max((max(row, default=0) for row in self.hash_ids), default=0)

    def prolonged(self, count: int) -> "SeenRequests":
        """At least so many: the older half repeated, then the newer."""
        if len(self) >= count:
            return self
        half = len(self) // 2
        older, newer = self._rows(slice(0, half)), self._rows(slice(half, None))
        return older.repeated(count // 2).then(newer.repeated(count - count // 2))

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

    def guessed(self) -> "SeenRequests":
        """All with `likely_tokens`: in overload the newest alone may have no answer to go by."""
        return replace(self, output_tokens=self.likely_tokens(), over=np.ones_like(self.over))

    def write(self, path: Path, max_len: int) -> int:
        """Write those that are `guessed` as a Mooncake trace, within so many tokens each; how many
        there are.
        """
        tokens = np.minimum(self.output_tokens, max_len - self.prompt_tokens)
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
        refitted: Callable[[], CandidatePool] | None = None,
    ) -> None:
        """`refitted` is asked for the unit at each search, where the profile is fitted anew."""
        self._refitted = refitted
        self._unit, self._knobs, self.slo = unit, knobs, slo
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
        if seen.lacking(self.slo):
            return []
        if self._refitted is not None:
            self._unit = self._refitted()
        at_once = seen.at_once(self.slo)
        first = max(0, len(seen) - MOST_REQUESTS)
        newest = seen.guessed().between(float(seen.arrival_s[first]), np.inf)
        wanted = min(MOST_REQUESTS, max(LEAST_RUN, int(RUN_EACH * at_once)))
        problem, count = self._problem(newest.prolonged(wanted), present)
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

    def _problem(self, seen: SeenRequests, present: LiveSettings) -> tuple[Problem, int]:
        self._traces += 1
        path = self._folder / f"seen-{self._traces}.jsonl"
        promised = SloClass(ttft_s=self.slo.ttft_s, tpot_s=self.slo.tpot_s)
        spec = WorkloadSpec(trace=path, classes=(promised,))
        scenario = Scenario(workload=spec, instance=(), limits=self._limits)
        goal = Goal(attainment=0.0, unserved_fraction=1.0)  # no run ends early
        problem = Problem(base=scenario, goal=goal)
        max_len = longest(problem, present.candidate(self._unit, self._knobs))
        return problem, seen.write(path, max_len)

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
