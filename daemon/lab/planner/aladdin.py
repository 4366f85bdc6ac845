"""Aladdin's worker configuration (section 4.1, eq. 5-6) and number of workers (section 4.3, eq. 7).

Names are the paper's: `N_g` devices of a worker, `M` bytes for keys and values, `m_r` bytes of a
request, `T_decode` the SLO of the mean time between tokens, `N_w` workers at arrival rate `r_a`.
"""

from collections.abc import Sequence
from math import ceil

import msgspec
import numpy as np

from daemon.cost.step_cost import StepCost
from daemon.cost.work import StepWork
from daemon.lab.planner.bounds import Mix, bound, held_tokens, profile_of, step_cost_of
from daemon.lab.planner.candidate import CandidatePool, PlanCandidate, scenario_of
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import Problem, WorkloadSlice
from daemon.lab.planner.session import Session

NUM_RATES = 5
_MOST_WORKERS = 256
_MOST_BATCH = 4096


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's T_max, in tokens a second for each device."""

    unit: CandidatePool
    t_max: float
    batch: int  # at which it is reached
    binds: str  # kv | slo: the smaller term of eq. 6


def t_max(
    n_g: int, memory_batch: float, iteration_s: float, slo_batch: float, t_decode_s: float
) -> tuple[float, str]:
    """Eq. 6 with M / m_r as `memory_batch`, and the term that binds."""
    by_memory = memory_batch / (n_g * iteration_s)
    by_slo = slo_batch / (n_g * t_decode_s)
    return (by_memory, "kv") if by_memory <= by_slo else (by_slo, "slo")


def worker_config(problem: Problem, unit: CandidatePool, mix: Mix) -> WorkerConfig:
    """T_max of one configuration, with the iteration time of its profile. Raises ScenarioError."""
    scenario = scenario_of(problem.base, PlanCandidate(pools=(unit,)))
    profile = profile_of(unit.profile, scenario.step_times)
    cost = step_cost_of(unit.profile, scenario.step_times)
    context = mix.mean_prompt + mix.mean_output / 2
    memory_batch = max(1, int(held_tokens(scenario, unit, profile) / context))
    slo_batch = _largest_batch(cost, context, problem.goal.tpot_s)
    iteration_s = cost.step_s(StepWork(memory_batch, int(memory_batch * context), (), memory_batch))
    best, binds = t_max(unit.num_devices, memory_batch, iteration_s, slo_batch, problem.goal.tpot_s)
    batch = memory_batch if binds == "kv" else slo_batch
    return WorkerConfig(unit=unit, t_max=best, batch=batch, binds=binds)


def _largest_batch(cost: StepCost, context: float, t_decode_s: float) -> int:
    """B: the largest batch whose iteration keeps the SLO; 0: none does."""

    def keeps(batch: int) -> bool:
        return cost.step_s(StepWork(batch, int(batch * context), (), batch)) <= t_decode_s

    low, high = 0, _MOST_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle - 1)
    return low


def compute_fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """k4 and c4 of eq. 5 by least squares: t_compute = k4 / N_g + c4 over (N_g, seconds)."""
    if len({n for n, _ in points}) < 2:
        raise PlannerError("eq. 5 needs the times of two numbers of devices")
    inverse = np.array([1.0 / n for n, _ in points])
    k4, c4 = np.polyfit(inverse, np.array([time_s for _, time_s in points]), 1)
    return float(k4), float(c4)


def worker_fit(points: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """k5 and c5 of eq. 7 by least squares over (rate, workers)."""
    if len({rate for rate, _ in points}) < 2:
        raise PlannerError("eq. 7 needs the workers of two rates")
    k5, c5 = np.polyfit([rate for rate, _ in points], [count for _, count in points], 1)
    return float(k5), float(c5)


def num_workers(r_a: float, k5: float, c5: float) -> int:
    """N_w of eq. 7."""
    return max(1, ceil(k5 * r_a + c5 - 1e-9))


def fewest_workers(
    session: Session,
    problem: Problem,
    worker: PlanCandidate,
    rate: float,
    mix: Mix,
    part: WorkloadSlice,
) -> int:
    """The fewest equal workers that keep the goal at a rate, from their bound on."""
    limit = bound(problem, worker, mix)
    if limit.fault:
        raise PlannerError(f"{worker.text} serves nothing: {limit.fault}")
    for count in range(max(1, ceil(rate / limit.rps)), _MOST_WORKERS + 1):
        pools = (msgspec.structs.replace(worker.pools[0], count=count),)
        candidate = msgspec.structs.replace(worker, pools=pools)
        if session.evaluate(problem, candidate, rate, part).sustained:
            return count
    raise PlannerError(f"{rate:g} requests/s take more than {_MOST_WORKERS} workers")


def counts_at_rates(
    session: Session,
    problem: Problem,
    worker: PlanCandidate,
    rate: float,
    mix: Mix,
    part: WorkloadSlice,
) -> list[tuple[float, int]]:
    """(rate, workers) at five rates up to `rate`, which eq. 7 is fitted to."""
    rates = [rate * (number + 1) / NUM_RATES for number in range(NUM_RATES)]
    session.what = f"workers at {NUM_RATES} rates"
    counts = session.map(
        lambda each: fewest_workers(session, problem, worker, each, mix, part), rates
    )
    return list(zip(rates, counts, strict=True))
