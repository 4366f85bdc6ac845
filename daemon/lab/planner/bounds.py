"""Bounds on a candidate before it is simulated: memory, the longest prompt, tokens/s, SLOs alone.

A bound is optimistic: prompts at the cheapest size of a chunk, decodes in the best batch that
memory allows, no queue and no transfer. A candidate that loses by its bound loses by a simulation.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from daemon.core.values.limits import limits_of
from daemon.cost.profile import Profile
from daemon.cost.step_cost import StepCost, chosen, cost_of
from daemon.cost.work import StepWork
from daemon.lab.planner.candidate import CandidatePool, PlanCandidate, profile_named, scenario_of
from daemon.lab.planner.evaluate import Problem, longest
from daemon.lab.planner.goal import Goal
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.simulator.pool import pools_of
from daemon.lab.simulator.power import check_cap
from daemon.lab.simulator.scenario import Scenario, ScenarioError
from daemon.lab.workload.workload import Float64, Workload
from daemon.state.role import Role

_CHUNKS = (1, 32, 128, 512, 1024, 2048, 4096, 8192)
_BATCHES = tuple(2**power for power in range(11))
_SLACK = 0.9  # of a step's time: they vary, and fits err


@dataclass(frozen=True)
class Bound:
    """The verdict on one candidate without a simulation."""

    rps: float = 0.0  # no rate above it can be sustained
    estimate_rps: float = 0.0  # a guess at what is, to begin with
    fault: str = ""  # why nothing can be: memory, longest prompt, slo, profile
    binds: str = ""  # the phase that bounds `rps`


@dataclass(frozen=True)
class Mix:
    """A workload's lengths, as bounds need them."""

    prompt: Float64  # [N] tokens
    mean_prompt: float
    mean_output: float
    longest: int  # tokens of the longest request

    @classmethod
    def of(cls, rows: Workload) -> "Mix":
        """The lengths of these requests."""
        total = rows.prompt_tokens + rows.output_tokens
        return cls(
            prompt=rows.prompt_tokens.astype(np.float64),
            mean_prompt=float(rows.prompt_tokens.mean()),
            mean_output=float(rows.output_tokens.mean()),
            longest=int(total.max()),
        )


@dataclass(frozen=True)
class _PoolTimes:
    """One instance's least time for each request of a mix, in seconds."""

    prompt_s: float
    answer_s: float
    likely_answer_s: float  # in batches whose steps keep the TPOT


def bound(problem: Problem, candidate: PlanCandidate, mix: Mix) -> Bound:
    """The bound of a candidate. Profiles that are unknown or refuse a knob are faults."""
    scenario = scenario_of(problem.base, candidate)
    prompt_rate = answer_rate = mixed_rate = likely_answer = likely_mixed = 0.0
    try:
        for pool in candidate.pools:
            profile = profile_of(pool.profile, scenario.step_times)
            check_cap(profile, pool.power_cap)
            held = held_tokens(scenario, pool, profile)
            if min(mix.longest, longest(problem, candidate)) > held:
                return Bound(fault="longest prompt")
            if fault := _alone(problem.goal, pool, profile, scenario, mix):
                return Bound(fault=fault)
            times = _times(problem.goal, profile, scenario, mix, held)
            if pool.role == Role.PREFILL:
                prompt_rate += pool.count / times.prompt_s
            elif pool.role == Role.DECODE:
                answer_rate += pool.count / times.answer_s
                likely_answer += pool.count / times.likely_answer_s
            else:
                mixed_rate += pool.count / (times.prompt_s + times.answer_s)
                likely_mixed += pool.count / (times.prompt_s + times.likely_answer_s)
    except ScenarioError as error:
        return Bound(fault="power cap" if "cap" in str(error) else "memory")
    except ProfileError:
        return Bound(fault="profile")
    if mixed_rate:
        return Bound(mixed_rate, 0.6 * likely_mixed, binds="both phases")
    if not answer_rate or (prompt_rate and prompt_rate < likely_answer):
        return Bound(min(prompt_rate, answer_rate or prompt_rate), 0.6 * prompt_rate, "", "prefill")
    return Bound(min(answer_rate, prompt_rate or answer_rate), 0.6 * likely_answer, "", "decode")


@cache
def profile_of(name: str, step_times: str) -> Profile:
    """A profile with the step times that a scenario asks for. Raises ProfileError."""
    return chosen(profile_named(name), step_times)


@cache
def step_cost_of(name: str, step_times: str) -> StepCost:
    """The cost of its steps."""
    return cost_of(profile_of(name, step_times))


def held_tokens(scenario: Scenario, pool: CandidatePool, profile: Profile) -> int:
    """Tokens of one instance's block pool. Raises ScenarioError where the model does not fit."""
    group = next(g for g in scenario.instance if g.profile == pool.profile)
    limits = limits_of(group, scenario.shared_limits)
    block_size = scenario.limits.block_size
    return pools_of(profile, group, block_size, limits).num_blocks * block_size


def _alone(goal: Goal, pool: CandidatePool, profile: Profile, scenario: Scenario, mix: Mix) -> str:
    """Whether too many requests would miss a promise with nobody beside them."""
    cost = step_cost_of(pool.profile, scenario.step_times)
    if goal.ttft_s and pool.role != Role.DECODE:
        lengths = np.quantile(mix.prompt, np.linspace(0.0, 1.0, 101))
        alone_s = [cost.step_s(StepWork(0, 0, ((max(2, int(n)), 0),), 1)) for n in lengths]
        kept = np.mean(np.array(alone_s) * _SLACK * profile.pp <= goal.ttft_s)
        if kept < goal.attainment:
            return "slo"
    if goal.tpot_s and pool.role != Role.PREFILL:
        alone = cost.step_s(StepWork(1, int(mix.mean_prompt), (), 1)) * profile.pp
        if alone * _SLACK > goal.tpot_s:
            return "slo"
    return ""


def _times(goal: Goal, profile: Profile, scenario: Scenario, mix: Mix, held: int) -> _PoolTimes:
    """The least times of one instance; stages of a pipeline work on batches of their own."""
    cost = cost_of(profile)
    context = mix.mean_prompt + mix.mean_output / 2
    limits = limits_of(scenario.instance[0], scenario.shared_limits)
    most = max(1, min(limits.max_running, int(held / context)))
    batches = sorted({most, *(size for size in _BATCHES if size < most)})
    decode_s = {
        size: cost.step_s(StepWork(size, int(size * context), (), size)) for size in batches
    }
    budget = scenario.limits.max_batch_tokens or _CHUNKS[-1]  # open: a device's own size
    chunks = [size for size in _CHUNKS if size <= max(32, budget)]
    marginal_s = min(
        (cost.step_s(StepWork(rows, int(rows * context), ((size, 0),), rows)) - alone_s) / size
        for (rows, alone_s), size in product(decode_s.items(), [s for s in chunks if s > 1])
    )
    whole_s = min(cost.step_s(StepWork(0, 0, ((s, 0),), 1)) / s for s in chunks if s > 1)
    least_s = max(min(marginal_s, whole_s), 1e-9)
    kept = [
        size for size, step_s in decode_s.items() if step_s * profile.pp <= (goal.tpot_s or 1e9)
    ]
    likely = max(kept, default=1)
    return _PoolTimes(
        prompt_s=_SLACK * least_s * mix.mean_prompt,
        answer_s=_SLACK * mix.mean_output * min(s / n for n, s in decode_s.items()),
        likely_answer_s=mix.mean_output * decode_s[likely] / likely,
    )
