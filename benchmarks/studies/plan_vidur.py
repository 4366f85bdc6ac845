"""Vidur's headline: the best configuration of Llama-2-70B for each workload, and of a wrong one.

For each workload the configuration of most requests/s a dollar (its section 7.3): one instance, of
two or four A100 or H100, one to four stages, under vllm, orca or sarathi with steps of 512 or 2,048
tokens, batches of 64 or 256; the P99 of the scheduling delay is at most 5 s, 90 % of requests have
their first token within 2 s and later ones every 0.2 s in the mean. The second table has what each
of these configurations is worth on the other workloads, as the factor that a request then costs.

    python -m benchmarks.studies plan_vidur [--requests 320] [--workloads chat-1m,arxiv-4k]

Vidur's own tables are of A100 alone. H100 is Splitwise's table of prompts and decodes, which it
measured with another engine, so the choice of a device compares two engines too. Vidur bounds the
P99 of each token's gap, the planner a request's mean gap; instances beside each other do not change
requests/s a dollar, so one of each is simulated.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.studies import frame
from daemon.lab.planner.bounds import Mix, bound
from daemon.lab.planner.candidate import CandidatePool, PlanCandidate, knobs_of, unit_of
from daemon.lab.planner.evaluate import KeptScores, Problem, WorkloadSlice, rows_of
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.halving import RankedCandidate, bounded, halve
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session, session
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.report.numbers import three_digits
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, WorkloadSpec

MODEL = "llama-2-70b"
WORKLOADS = ("chat-1m", "splitwise-code", "arxiv-4k", "bwb-4k")
"""Chat, code, summaries, and books, whose answers are longer than their prompts."""
SLO = SloClass(ttft_s=2.0, tpot_s=0.2)
MAX_LEN = 4096
_WIDTH = 0.05
"""Relative width of the capacities in the second table."""


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--workloads", type=frame.listed, default=list(WORKLOADS))
    parser.add_argument("--requests", type=int, default=600, help="of the first rung")
    parser.add_argument("--degrees", type=frame.numbers, default=[2, 4])
    parser.add_argument("--stages", type=frame.numbers, default=[1, 2, 4])
    parser.add_argument("--running", type=frame.numbers, default=[64, 256])
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one a core")
    parser.add_argument("--resume", type=Path, help="keep each simulation's result here")


def study(options: argparse.Namespace) -> None:
    """Print both tables."""
    KeptScores(options.resume)  # refuses a file of another kind before minutes are spent
    objective = Objective(name="cost")
    candidates = list(_candidates(options))
    print(f"{len(candidates)} candidates of one instance\n", flush=True)
    frame.heads("workload", "best", "requests/s", "a dollar/h", "limited by", "simulated", "s")
    with session(options.resume, options.workers) as made:
        best = {
            name: _best(made, objective, candidates, name, options.requests)
            for name in options.workloads
        }
        print("\nWhat a request costs with the best configuration of another workload:\n")
        frame.heads("served", *(f"as for {name}" for name in best))
        for served, own in best.items():
            row = [served]
            for meant, other in best.items():
                value = own.value
                if meant != served:
                    value = _value(made, objective, other.candidate, served, options.requests)
                row.append(f"{own.value / value:.2f}" if value else "never keeps the SLOs")
            frame.row(row)


def problem_of(name: str) -> Problem:
    """A workload under Vidur's promises."""
    return Problem(
        base=Scenario(
            workload=WorkloadSpec(name=name, classes=(SLO,)),
            instance=(),
            limits=ScenarioLimits(max_len=MAX_LEN),
        ),
        goal=Goal(attainment=0.9, p99_queueing_s=5.0, unserved_fraction=1.0),
    )


def _candidates(options: argparse.Namespace) -> list[PlanCandidate]:
    running = tuple(map(int, options.running))
    knobs = [
        *knobs_of(policies=("vllm", "orca"), running=running),
        *knobs_of(policies=("sarathi",), budgets=(512, 2048), running=running),
    ]
    return [
        PlanCandidate(pools=(unit,), knobs=each) for unit, each in product(_units(options), knobs)
    ]


def _units(options: argparse.Namespace) -> list[CandidatePool]:
    found = []
    for device, tp, pp in product(("a100-80g", "h100"), options.degrees, options.stages):
        try:
            found.append(unit_of(f"{MODEL}@{device}-tp{tp:g}" + f"-pp{pp:g}" * (pp > 1)))
        except ProfileError:
            continue
    return found


def _best(
    made: Session,
    objective: Objective,
    candidates: Sequence[PlanCandidate],
    name: str,
    requests: int,
) -> RankedCandidate:
    """The winner on a workload, its capacity searched on the last rung's requests."""
    problem, before, begin_s = problem_of(name), made.tried, time.perf_counter()
    mix = _mix(problem, requests)
    field = bounded(made, problem, objective, candidates, mix)
    # A slice of fewer requests than a batch has rows fills no candidate's instances.
    found = halve(made, problem, objective, field, (requests, requests + requests // 4))[0]
    frame.row((
        name, found.candidate.text, three_digits(found.rps), three_digits(found.value),
        ", ".join(found.limited_by), made.tried - before,
        f"{time.perf_counter() - begin_s:.0f}",
    ))  # fmt: skip
    return found


def _value(
    made: Session, objective: Objective, candidate: PlanCandidate, name: str, requests: int
) -> float:
    """Requests/s a dollar of one configuration on a workload; 0: it keeps the SLOs at no rate."""
    problem = problem_of(name)
    limit = bound(problem, candidate, _mix(problem, requests))
    if limit.fault:
        return 0.0
    found = made.capacity(
        problem,
        candidate,
        WorkloadSlice(0, requests),
        near=max(limit.estimate_rps, 1e-3 * limit.rps),
        most=limit.rps,
        width=_WIDTH,
    )
    return objective.value(candidate, found.rps)


def _mix(problem: Problem, requests: int) -> Mix:
    return Mix.of(rows_of(problem, WorkloadSlice(0, requests), MAX_LEN))
