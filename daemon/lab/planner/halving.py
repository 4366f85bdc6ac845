"""Successive halving with an incumbent: few requests for many candidates, many for few.

Each rung simulates more requests than the one before, the same ones for all candidates. In a rung a
candidate is tried at the rate at which it would be worth more than the best one so far by the
rung's width; if it keeps the goal there, its capacity is searched, and it is the best one now. So
candidates as good as the best one are not searched again. Those that lose are ranked by their
attainment there. In the last rung a candidate that could not win by its bound is not simulated; its
losers keep the rate that they had before: verification searches it anew.
"""

from collections.abc import Sequence

import msgspec

from daemon.lab.planner.bounds import Bound, Mix, bound
from daemon.lab.planner.candidate import PlanCandidate
from daemon.lab.planner.evaluate import Problem, Score, WorkloadSlice
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session

RUNGS = (300, 1200, 4800)
"""Requests of each rung."""
KEPT_SHARE = 4
"""One in so many candidates goes on to the next rung."""
FINALISTS = 3
"""Candidates that the last rung has at most; of those before, each has twice as many at least."""
BATCH = 4
"""Candidates that are tried against the same incumbent, whatever the number of processes."""
WIDTHS = (0.1, 0.05, 0.02)
"""Relative widths of capacities in the rungs, from the last one backwards the narrowest."""

_FAR, _NEAR = 1.5, 1.15
"""Strides from a guess, and from what an earlier rung found."""
_ROUGH = 2.5
"""Width of those that lost to the best, in widths of the last rung."""


class RankedCandidate(msgspec.Struct, kw_only=True):
    """A candidate in a search."""

    candidate: PlanCandidate
    bound_rps: float
    guess_rps: float  # what it may sustain, from the bound's terms
    near_rps: float  # where its next capacity search begins
    rps: float = 0.0  # sustained in its last rung, or guessed where it lost there; 0: none
    value: float = 0.0
    attainment: float = 0.0  # where it was tried
    score: Score | None = None  # at `rps`
    limited_by: tuple[str, ...] = ()  # the bounds that failed above

    @property
    def order(self) -> tuple[float, float, float]:
        """The larger, the better."""
        return self.value, self.attainment, self.bound_rps


def bounded(
    session: Session,
    problem: Problem,
    objective: Objective,
    candidates: Sequence[PlanCandidate],
    mix: Mix,
) -> list[RankedCandidate]:
    """The candidates that can be simulated at all, the most promising first; others are counted."""
    found = []
    for candidate in candidates:
        fault = objective.fault(candidate)
        limit = Bound(fault=fault) if fault else bound(problem, candidate, mix)
        fault = limit.fault
        if not fault and objective.rate_rps and limit.rps < objective.rate_rps:
            fault = f"tokens/s ({limit.binds})"
        if fault:
            session.dropped[fault] += 1
            continue
        near = max(limit.estimate_rps, 1e-3 * limit.rps)
        found.append(
            RankedCandidate(candidate=candidate, bound_rps=limit.rps, guess_rps=near, near_rps=near)
        )
    return sorted(
        found,
        key=lambda each: (
            -min(each.near_rps, objective.rate_rps or each.near_rps)
            / objective.divisor(each.candidate)
        ),
    )


def halve(
    session: Session,
    problem: Problem,
    objective: Objective,
    field: Sequence[RankedCandidate],
    rungs: Sequence[int] = RUNGS,
) -> list[RankedCandidate]:
    """The last rung's candidates, the best first."""
    alive = list(field)
    session.expected += _expected(len(alive), rungs)
    for number, requests in enumerate(rungs):
        is_last = number == len(rungs) - 1
        width = WIDTHS[max(0, len(WIDTHS) - len(rungs) + number)]
        rung = _Rung(session, problem, objective, WorkloadSlice(0, requests), width, is_last)
        session.what = f"{len(alive)} candidates, {requests:,} requests each"
        alive = sorted(rung.run(alive), key=lambda each: each.order, reverse=True)
        if not is_last:
            alive = alive[: _kept(len(alive), len(rungs) - 2 - number)]
    return alive


def exhaust(
    session: Session,
    problem: Problem,
    objective: Objective,
    field: Sequence[RankedCandidate],
    requests: int = RUNGS[-1],
) -> list[RankedCandidate]:
    """Every candidate's capacity on the last rung's requests, the best first."""
    session.expected += 8 * requests * len(field)
    session.what = f"all {len(field)} candidates, {requests:,} requests each"
    rung = _Rung(
        session, problem, objective, WorkloadSlice(0, requests), WIDTHS[-1], True, exhaustive=True
    )
    return sorted(rung.run(field), key=lambda each: each.order, reverse=True)


def _kept(count: int, rungs_before_last: int) -> int:
    least = FINALISTS * 2**rungs_before_last
    return min(count, max(least, -(-count // KEPT_SHARE)) if rungs_before_last else FINALISTS)


def _expected(count: int, rungs: Sequence[int]) -> int:
    total = 0
    for number, requests in enumerate(rungs):
        searched = 8 if number == 0 else 4
        total += requests * (count + searched)
        count = _kept(count, len(rungs) - 2 - number)
    return total


class _Rung:
    """One rung: its slice, and the best value so far."""

    def __init__(
        self,
        session: Session,
        problem: Problem,
        objective: Objective,
        part: WorkloadSlice,
        width: float,
        is_last: bool,
        exhaustive: bool = False,
    ) -> None:
        self._session, self._problem, self._objective = session, problem, objective
        self._part, self._width = part, width
        self._is_last = is_last
        self._compares = False  # candidates that must be ranked beyond the best one
        self._exhaustive = exhaustive
        self._best = 0.0

    def run(self, alive: Sequence[RankedCandidate]) -> list[RankedCandidate]:
        """All candidates after this rung, without those that are dropped."""
        done: list[RankedCandidate] = []
        self._compares = self._is_last and len(alive) > FINALISTS
        for begin in range(0, len(alive), BATCH):
            # The first candidate is alone: the others have an incumbent to be tried against.
            batches = [alive[:1], alive[1:BATCH]] if begin == 0 else [alive[begin : begin + BATCH]]
            for batch in batches:
                # Short slices pass at rates that nothing sustains: no bound is compared with those.
                able = [each for each in batch if not self._is_last or self._can_win(each)]
                if len(able) < len(batch):
                    self._session.dropped["bound below the best"] += len(batch) - len(able)
                done += self._batch(able)
        return done

    def _batch(self, able: Sequence[RankedCandidate]) -> list[RankedCandidate]:
        """A batch after this rung. Of those that beat the incumbent the likeliest is searched, and
        the others are tried against it.
        """
        has_incumbent = self._best > 0.0 and not self._whole
        tried = self._session.map(self._tried, able)
        done: list[RankedCandidate] = []
        while has_incumbent and (beating := [each for each in tried if each.value > self._best]):
            done += [each for each in tried if each.value <= self._best]
            first = max(beating, key=lambda each: each.attainment)
            found = self._searched(first, first.rps, self._width)
            self._best = max(self._best, found.value)
            done.append(found)
            tried = self._session.map(self._again, [each for each in beating if each is not first])
        self._best = max([self._best, *(each.value for each in tried)])
        return done + tried

    @property
    def _whole(self) -> bool:
        """Whether candidates are judged each by itself, not at an incumbent's rate."""
        return self._exhaustive or self._objective.is_offline or self._objective.rate_rps > 0.0

    def _can_win(self, ranked: RankedCandidate) -> bool:
        """Whether a candidate's bound is above the incumbent."""
        if self._exhaustive:
            return True
        value = self._objective.value(ranked.candidate, ranked.bound_rps)
        return value > self._best or bool(self._objective.rate_rps and value == self._best)

    def _tried(self, ranked: RankedCandidate) -> RankedCandidate:
        objective, candidate = self._objective, ranked.candidate
        if objective.is_offline:
            return self._at_once(ranked)
        if objective.rate_rps:
            return self._at(ranked, objective.rate_rps)
        if not self._best or self._exhaustive:
            return self._searched(ranked, ranked.near_rps, self._width)
        tried = self._at(ranked, self._rate_to_beat(ranked))
        if tried.value:
            return tried
        if self._compares:
            return self._searched(ranked, tried.near_rps, _ROUGH * self._width)
        if not self._is_last or (tried.score is not None and tried.score.error):
            return tried
        value = objective.value(candidate, tried.near_rps)
        return msgspec.structs.replace(tried, rps=tried.near_rps, value=value)

    def _again(self, ranked: RankedCandidate) -> RankedCandidate:
        """One that beat the incumbent before, tried against the one after."""
        if not self._can_win(ranked):
            return ranked
        tried = self._at(ranked, self._rate_to_beat(ranked))
        return tried if tried.value else ranked

    def _rate_to_beat(self, ranked: RankedCandidate) -> float:
        """The rate at which it is worth more than the incumbent by the rung's width."""
        rate = (1.0 + self._width) * self._objective.rate_to_beat(ranked.candidate, self._best)
        return min(rate, ranked.bound_rps)

    def _at_once(self, ranked: RankedCandidate) -> RankedCandidate:
        score = self._session.evaluate(self._problem, ranked.candidate, 0.0, self._part)
        rps = score.throughput_rps
        value = self._objective.value(ranked.candidate, rps)
        return msgspec.structs.replace(ranked, rps=rps, value=value, score=score, attainment=1.0)

    def _at(self, ranked: RankedCandidate, rate: float) -> RankedCandidate:
        score = self._session.evaluate(self._problem, ranked.candidate, rate, self._part)
        rps = rate if score.sustained else 0.0
        near = rate if score.sustained else min(ranked.near_rps, 0.9 * rate)
        return msgspec.structs.replace(
            ranked,
            rps=rps,
            near_rps=near,
            value=self._objective.value(ranked.candidate, rps),
            attainment=score.attainment,
            score=score,
            limited_by=score.failed,
        )

    def _searched(self, ranked: RankedCandidate, near: float, width: float) -> RankedCandidate:
        found = self._session.capacity(
            self._problem,
            ranked.candidate,
            self._part,
            near=near,
            most=ranked.bound_rps,
            width=width,
            stride=_FAR if ranked.score is None else _NEAR,
        )
        rps = found.rps
        if found.failed is None and not self._is_last:
            rps = ranked.guess_rps  # the slice is too short to fill the instances: it tells nothing
        return msgspec.structs.replace(
            ranked,
            rps=rps,
            near_rps=rps or found.at.rate_rps,
            value=self._objective.value(ranked.candidate, rps),
            attainment=found.at.attainment,
            score=found.at,
            limited_by=found.failed.failed if found.failed is not None else ("tokens/s",),
        )
