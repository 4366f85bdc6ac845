"""A plan: the search, and the verification of the best on requests that it has not seen."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from daemon.lab.planner.aladdin import counts_at_rates, num_workers, worker_config, worker_fit
from daemon.lab.planner.bounds import Mix
from daemon.lab.planner.candidate import PlanCandidate, Space
from daemon.lab.planner.distserve import placement
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import (
    Problem,
    Score,
    WorkloadSlice,
    has_times,
    longest,
    rows_of,
)
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.halving import RUNGS, RankedCandidate, bounded, exhaust, halve
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session
from daemon.lab.workload.workload import WorkloadSpec
from daemon.scheduler.policies import POLICIES

SEARCHES = {
    "vidur": "the whole space",
    "distserve": "prefill and decode apart, then replicated",
    "splitwise": "numbers of prefill, decode and mixed instances for an equal rate, rent or power",
    "aladdin": "the worker of the highest throughput, then how many",
}
HELD_OUT = 3
"""Slices on which the best are verified, each with a seed of its own."""
_WIDTH = 0.03
_STRIDE = 1.1


class OwnRate(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate at the times at which a trace's requests really came."""

    rate_rps: float
    attainment: float  # the mean over held-out spans
    spread: float  # the largest attainment less the smallest


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on the held-out slices."""

    candidate: PlanCandidate
    searched_rps: float  # on the slice of the search
    goodput_rps: float  # the mean over held-out slices
    spread_rps: float  # the largest less the smallest of them
    attainment: float  # the mean, at the rate asked, else at each slice's goodput
    attainment_spread: float
    value: float  # of the objective
    limited_by: tuple[str, ...] = ()
    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None
    mean_power_w: float | None = None
    makespan_s: float = 0.0  # the mean over slices, from the first arrival to the last token
    own_rate: OwnRate | None = None  # where a trace has a rate of its own, and none was asked

    @property
    def spread(self) -> float:
        """The spread, as a share of the goodput."""
        return self.spread_rps / self.goodput_rps if self.goodput_rps else 0.0


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a search."""

    verified: tuple[Verified, ...]  # the best first; none: no candidate keeps the goal
    objective: Objective
    condition: str
    candidates: int
    dropped: dict[str, int]  # candidates that were not simulated further, by reason
    tried: int  # simulations, those of the verification included
    found: int  # answers of earlier runs
    requests: int  # simulated by the search alone
    wall_s: float
    present: Verified | None = None  # the journal's own configuration, on the same slices
    workers: tuple[float, float] = (0.0, 0.0)  # k5 and c5 of Aladdin's eq. 7; 0: not fitted
    measured: float | None = None  # attainment of the journal's second half, as clients had it
    points: tuple[tuple[PlanCandidate, Score], ...] = ()  # of all candidates that kept the goal
    held_out: tuple[WorkloadSlice, ...] = ()

    @property
    def keeps_present(self) -> bool:
        """Whether the gain over the present configuration does not exceed the spread."""
        if self.present is None:
            return False
        best, present = self.best, self.present
        spread = max(best.spread, present.spread) * max(best.value, present.value)
        return best.value - present.value <= spread

    @property
    def best(self) -> Verified:
        """The winner. Raises PlannerError where nothing keeps the goal."""
        if not self.verified:
            reasons = ", ".join(f"{why}: {count}" for why, count in self.dropped.items())
            raise PlannerError(
                f"none of {self.candidates} candidates keeps {self.condition}"
                + (f" (not simulated: {reasons})" if reasons else "")
            )
        return self.verified[0]

    def as_json(self) -> dict[str, object]:
        """The names that scripts rely on."""
        best = self.best
        more: dict[str, object] = {}
        if self.present is not None:
            more["present"] = described(self.present.candidate) | {
                "goodput_rps": self.present.goodput_rps,
                "attainment": self.present.attainment,
                "own_rate": msgspec.to_builtins(self.present.own_rate),
                "value": self.present.value,
                "kept": self.keeps_present,
            }
        if self.measured is not None:
            more["measured"] = {"attainment": self.measured}
        if self.workers != (0.0, 0.0):
            more["workers"] = dict(zip(("k5", "c5"), self.workers, strict=True))
        return more | {
            "best": described(best.candidate),
            "predicted": {
                "goodput_rps": best.goodput_rps,
                "spread_rps": best.spread_rps,
                "attainment": best.attainment,
                "own_rate": msgspec.to_builtins(best.own_rate),
                "ttft_p99_s": best.ttft_p99_s,
                "tpot_p99_s": best.tpot_p99_s,
                "mean_power_w": best.mean_power_w,
                "makespan_s": best.makespan_s,
                "value": best.value,
                "limited_by": best.limited_by,
            },
            "others": [
                described(each.candidate) | {"goodput_rps": each.goodput_rps, "value": each.value}
                for each in self.verified[1:]
            ],
            "objective": self.objective.name,
            "condition": self.condition,
            "candidates": self.candidates,
            "dropped": self.dropped,
            "tried": self.tried,
            "found": self.found,
            "searched_requests": self.requests,
            "wall_s": self.wall_s,
        }


def described(candidate: PlanCandidate) -> dict[str, object]:
    """A candidate's parts by name."""
    knobs, roles = candidate.knobs, dict[str, int]()
    for pool in candidate.pools:
        roles[pool.role] = roles.get(pool.role, 0) + pool.count
    policy = POLICIES.get(knobs.policy)
    return {
        "instances": msgspec.to_builtins(candidate.pools),
        "roles": roles | {"set_by": candidate.roles},
        "policy": knobs.policy,
        "budget": policy.budget(knobs.max_batch_tokens) if policy else knobs.max_batch_tokens,
        "chunk": knobs.prefill_chunk,
        "max_running": knobs.max_running,
        "kv_bytes": knobs.kv_bytes,
        "text": candidate.text,
    }


def plan(
    session: Session,
    problem: Problem,
    objective: Objective,
    space: Space,
    *,
    rungs: Sequence[int] = RUNGS,
    exhaustive: bool = False,
    search: str = "vidur",
    affinity: str = "high",
    present: PlanCandidate | None = None,
) -> DeploymentPlan:
    """Search as one of `SEARCHES` does, and verify the best three, and the `present` configuration.

    Raises PlannerError, WorkloadError.
    """
    begin_s = time.monotonic()
    candidates = list(space.candidates())
    if not candidates:
        raise PlannerError("there is no candidate: no profile's instance fits the devices")
    rungs, held_out = slices(problem, candidates[0], rungs)
    if search == "distserve":
        candidates = placement(
            session, problem, space, objective, requests=rungs[-1], affinity=affinity
        )
        exhaustive = True
    mix = Mix.of(rows_of(problem, WorkloadSlice(0, rungs[-1]), longest(problem, candidates[0])))
    workers = (0.0, 0.0)
    if search == "aladdin":
        candidates, workers = _aladdin(session, problem, objective, space, mix, rungs[-1])
        exhaustive = True
    field = bounded(session, problem, objective, candidates, mix)
    if exhaustive:
        ranked = exhaust(session, problem, objective, field, rungs[-1])
    else:
        ranked = halve(session, problem, objective, field, rungs)
    requests = session.requests
    best = [each for each in ranked if each.value > 0.0][:HELD_OUT]
    session.what = f"verifying the best {len(best)}"
    session.expected = session.requests + 4 * len(best) * sum(part.requests for part in held_out)
    verified = session.map(lambda each: verify(session, problem, objective, each, held_out), best)
    now = next((each for each in verified if each.candidate == present), None)
    if present is not None and now is None:
        now = _alone(session, problem, objective, present, mix, rungs[-1], held_out)
    verified.sort(key=lambda each: (each.value, each.attainment), reverse=True)
    return DeploymentPlan(
        verified=tuple(each for each in verified if each.value > 0.0),
        objective=objective,
        condition=condition(problem.goal, problem.base.workload),
        candidates=len(candidates),
        dropped=dict(session.dropped),
        tried=session.tried,
        found=session.found,
        requests=requests,
        wall_s=time.monotonic() - begin_s,
        present=now,
        workers=workers,
        points=session.points(candidates),
        held_out=held_out,
    )


def _alone(
    session: Session,
    problem: Problem,
    objective: Objective,
    candidate: PlanCandidate,
    mix: Mix,
    requests: int,
    held_out: Sequence[WorkloadSlice],
) -> Verified | None:
    """A candidate that no search has chosen, verified; None: its bound refuses it."""
    own = bounded(session, problem, Objective(), [candidate], mix)
    own = exhaust(session, problem, objective, own, requests)
    return verify(session, problem, objective, own[0], held_out) if own else None


def _aladdin(
    session: Session,
    problem: Problem,
    objective: Objective,
    space: Space,
    mix: Mix,
    requests: int,
) -> tuple[list[PlanCandidate], tuple[float, float]]:
    """The worker of eq. 6 in the number of eq. 7, for the first of the space's knobs."""
    if not objective.rate_rps or not problem.goal.tpot_s:
        raise PlannerError("aladdin: the number of workers needs --rate and --slo-tpot")
    config = max(
        (worker_config(problem, unit, mix) for unit in space.units), key=lambda each: each.t_max
    )
    worker = PlanCandidate(pools=(config.unit,), knobs=space.knobs[0])
    rate = objective.rate_rps
    counts = counts_at_rates(session, problem, worker, rate, mix, WorkloadSlice(0, requests))
    k5, c5 = worker_fit(counts)
    pools = (msgspec.structs.replace(config.unit, count=num_workers(rate, k5, c5)),)
    return [msgspec.structs.replace(worker, pools=pools)], (k5, c5)


def condition(goal: Goal, workload: WorkloadSpec) -> str:
    """The bounds in words."""
    names = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("gap_s", "longest gap"))
    parts = [f"{name} <= {getattr(goal, key):g} s" for key, name in names if getattr(goal, key)]
    kept = f" for {100 * goal.attainment:g} % of requests" if parts else ""
    text = " and ".join(parts) + kept
    if goal.p99_queueing_s:
        text += ("; " if text else "") + f"P99 queueing <= {goal.p99_queueing_s:g} s"
    if workload.arrivals == "closed":
        return "all requests at once"
    classes = len(workload.classes)
    return text or f"the promises to {classes} class{'es' * (classes > 1)}"


def slices(
    problem: Problem, candidate: PlanCandidate, rungs: Sequence[int]
) -> tuple[tuple[int, ...], tuple[WorkloadSlice, ...]]:
    """The rungs, and the held-out slices behind the longest of them.

    A trace with times of its own is divided: at most its first half is searched.
    """
    spec, last = problem.base.workload, rungs[-1]
    held = last
    if has_times(spec):
        whole = WorkloadSlice(0, 1)
        have = len(_all_rows(problem, whole, longest(problem, candidate)))
        last = min(last, have // 2)
        held = min(last, (have - last) // HELD_OUT)
        if held < 10:
            raise PlannerError(
                f"{have} requests are too few to search on some and verify on others"
            )
    used = tuple(dict.fromkeys(min(rung, last) for rung in rungs))
    return used, tuple(
        WorkloadSlice(last + number * held, held, 1 + number) for number in range(HELD_OUT)
    )


def _all_rows(problem: Problem, part: WorkloadSlice, max_len: int) -> range:
    """The rows that a trace with times of its own has."""
    from daemon.lab.workload.build import build

    return range(
        len(build(msgspec.structs.replace(problem.base.workload, rate_scale=0.0), max_len))
    )


def verify(
    session: Session,
    problem: Problem,
    objective: Objective,
    ranked: RankedCandidate,
    held_out: Sequence[WorkloadSlice],
) -> Verified:
    """A finalist on each held-out slice: at the rate asked, else at its capacity there."""
    candidate, asked = ranked.candidate, objective.rate_rps
    rates, scores = [], []
    for part in held_out:
        if objective.is_offline:
            score = session.evaluate(problem, candidate, 0.0, part)
            rates.append(score.throughput_rps)
        elif asked:
            score = session.evaluate(problem, candidate, asked, part)
            rates.append(asked if score.sustained else 0.0)
        else:
            found = session.capacity(
                problem,
                candidate,
                part,
                near=ranked.rps,
                most=ranked.bound_rps,
                width=_WIDTH,
                stride=_STRIDE,
            )
            score = found.at
            rates.append(found.rps)
        scores.append(score)
    shares = [score.attainment for score in scores]
    goodput = float(np.mean(rates))
    if asked and np.mean(shares) >= problem.goal.attainment:
        goodput = asked
    return Verified(
        candidate=candidate,
        searched_rps=ranked.rps,
        goodput_rps=goodput,
        spread_rps=max(rates) - min(rates),
        attainment=float(np.mean(shares)),
        attainment_spread=max(shares) - min(shares),
        value=objective.value(candidate, goodput),
        limited_by=ranked.limited_by,
        ttft_p99_s=_mean([score.ttft_p99_s for score in scores]),
        tpot_p99_s=_mean([score.tpot_p99_s for score in scores]),
        mean_power_w=_mean([score.mean_power_w for score in scores]),
        makespan_s=float(np.mean([score.makespan_s for score in scores])),
        own_rate=_own_rate(session, problem, objective, candidate, held_out),
    )


def _own_rate(
    session: Session,
    problem: Problem,
    objective: Objective,
    candidate: PlanCandidate,
    held_out: Sequence[WorkloadSlice],
) -> OwnRate | None:
    """The attainment at the trace's own times; None: it has none, or a rate was asked.

    One run from the trace's beginning, of which the held-out spans are judged: spans that begin
    empty have no queue yet.
    """
    if objective.is_offline or objective.rate_rps or not has_times(problem.base.workload):
        return None
    first, last = held_out[0], held_out[-1]
    whole = WorkloadSlice(0, last.first + last.requests, 0, first.first, len(held_out))
    goal = msgspec.structs.replace(problem.goal, attainment=0.0)  # so that no run ends early
    judged = msgspec.structs.replace(problem, goal=goal)
    rate = rows_of(problem, whole, longest(problem, candidate)).rate
    score = session.evaluate(judged, candidate, rate, whole)
    shares = score.attainments or (score.attainment,)
    return OwnRate(
        rate_rps=rate,
        attainment=float(np.mean(shares)),
        spread=max(shares) - min(shares),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
