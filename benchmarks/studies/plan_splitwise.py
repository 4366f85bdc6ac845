"""Splitwise's designs at equal power, equal cost and equal throughput: its Figures 18 and 19.

Llama-2-70B on machines of eight A100 or H100, a tenth of the paper's clusters: four H100 machines,
whose power is that of seven of A100. A design is a kind of machine for prompts and one for answers
(AA, HH, HA, and HHcap, whose H100 for answers are capped to half the power of their GPUs); the
baselines are mixed machines. Weights of power and cost are those of the paper's Table V, for each
machine. At equal power and equal cost each design has every split that fits the budget, and the
best one's rate counts; at equal throughput it has the cheapest split that sustains the rate.

    python -m benchmarks.studies plan_splitwise [--workloads azure-conv,splitwise-code]
        [--machines 4] [--requests 400] [--a100 PROFILE]

The paper asks for nine percentiles of slowdowns (Table VI); here 90 % of requests have their first
token within 3 times, and later ones within 1.5 times, of what the median request alone takes on
A100 (its row of P90). The shipped profile of A100 is Vidur's, whose kernels are not those of
Splitwise's H100; `llmd profile import splitwise perf_model.csv --model llama-2-70b --tp 8` makes
one of Splitwise's own table for --a100.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.studies import frame
from daemon.cost.work import StepWork
from daemon.lab.planner.bounds import Mix, step_cost_of
from daemon.lab.planner.candidate import CandidatePool, Knobs, PlanCandidate, unit_of
from daemon.lab.planner.evaluate import KeptScores, Problem, WorkloadSlice, rows_of
from daemon.lab.planner.goal import Goal
from daemon.lab.planner.halving import bounded
from daemon.lab.planner.objective import Objective
from daemon.lab.planner.session import Session, session
from daemon.lab.report.numbers import three_digits
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.state.role import Role

H100 = "llama-2-70b@h100-tp8"
MAX_LEN = 4096
CAP = 0.5
"""Of a GPU's power, 70 % of its machine's (the paper's section IV-D)."""
WATTS = {"a": 1.0, "h": 1.75, "hcap": 1.23}
COST = {"a": 1.0, "h": 2.35, "hcap": 2.35}
DESIGNS = {
    "Baseline-A100": ("a", ""),
    "Baseline-H100": ("h", ""),
    "Splitwise-AA": ("a", "a"),
    "Splitwise-HH": ("h", "h"),
    "Splitwise-HHcap": ("h", "hcap"),
    "Splitwise-HA": ("h", "a"),
}
"""Machines for prompts, and for answers; none: mixed ones."""
TTFT_TIMES, TPOT_TIMES = 3.0, 1.5
_WIDTH = 0.06  # of a capacity
_MOST = 3.0  # times the baseline's weight that a design of equal throughput may have


class Split(NamedTuple):
    """A design with so many machines of each kind."""

    design: str
    prompts: int
    answers: int

    def weight(self, of: dict[str, float]) -> float:
        """Its power or cost."""
        one, other = DESIGNS[self.design]
        return self.prompts * of[one] + self.answers * of.get(other, 0.0)

    @property
    def text(self) -> str:
        """As the paper writes it."""
        return f"{self.prompts}P, {self.answers}T" if self.answers else f"{self.prompts}P/T"


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--workloads", type=frame.listed, default=["azure-conv"])
    parser.add_argument("--machines", type=int, default=4, help="of the H100 baseline")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--a100", default="llama-2-70b@a100-80g-tp8", help="the profile of A100")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one a core")
    parser.add_argument("--resume", type=Path, help="keep each simulation's result here")


def study(options: argparse.Namespace) -> None:
    """Print the tables of each workload."""
    KeptScores(options.resume)  # refuses a file of another kind before minutes are spent
    with session(options.resume, options.workers) as made:
        for name in options.workloads:
            _Tables(made, name, options).print_all()


class _Tables:
    """The four tables of one workload."""

    def __init__(self, made: Session, name: str, options: argparse.Namespace) -> None:
        self._made, self._machines = made, options.machines
        self._units = {"a": unit_of(options.a100), "h": unit_of(H100), "hcap": unit_of(H100)}
        self._part = WorkloadSlice(0, options.requests)
        self._problem = problem_of(name, options.a100, self._part)
        self._mix = Mix.of(rows_of(self._problem, self._part, MAX_LEN))
        goal = self._problem.goal
        print(f"\n{name}: TTFT <= {goal.ttft_s:.3g} s, TPOT <= {1e3 * goal.tpot_s:.3g} ms")

    def print_all(self) -> None:
        """Equal power, equal cost, then the least of both at the H100 baseline's rate."""
        rate = 0.0
        for what, of in (("power", WATTS), ("cost", COST)):
            budget = self._machines * of["h"]
            print(f"\nequal {what}: {budget:.4g} times that of a machine of A100\n")
            frame.heads("design", "machines", "requests/s", "to the best baseline", "power", "cost")
            found = {name: self._best(name, of, budget) for name in DESIGNS}
            base = max(rps for name, (_, rps) in found.items() if name.startswith("Baseline"))
            rate = found["Baseline-H100"][1]
            for name, (split, rps) in found.items():
                share = f"{rps / base:.2f}" if base else "-"
                frame.row((name, split.text, three_digits(rps), share, *_weights(split)))
        for what, of in (("power", WATTS), ("cost", COST)):
            print(f"\n{three_digits(rate)} requests/s at the least {what}\n")
            frame.heads("design", "machines", "power", "cost")
            for name in DESIGNS:
                split = self._least(name, of, rate)
                if split is None:
                    frame.row((name, f"over {_MOST:g} times the baseline's {what}", "-", "-"))
                else:
                    frame.row((name, split.text, *_weights(split)))

    def _best(self, name: str, of: dict[str, float], budget: float) -> tuple[Split, float]:
        """The split of the highest rate among those that leave no machine's room in the budget."""
        splits = {self._candidate(split): split for split in whole(name, of, budget)}
        field = bounded(self._made, self._problem, Objective(), list(splits), self._mix)
        if not field:
            return next(iter(splits.values())), 0.0
        found = [
            self._made.capacity(
                *(self._problem, each.candidate, self._part),
                near=each.near_rps,
                most=each.bound_rps,
                width=_WIDTH,
            ).rps
            for each in field
        ]
        best = max(range(len(field)), key=found.__getitem__)
        return splits[field[best].candidate], found[best]

    def _least(self, name: str, of: dict[str, float], rate: float) -> Split | None:
        """The split of least weight that sustains a rate."""
        most = _MOST * self._machines * of["h"]
        for split in sorted(every(name, of, most), key=lambda each: each.weight(of)):
            candidate = self._candidate(split)
            asked = Objective(rate_rps=rate)
            if not bounded(self._made, self._problem, asked, [candidate], self._mix):
                continue
            if self._made.evaluate(self._problem, candidate, rate, self._part).sustained:
                return split
        return None

    def _candidate(self, split: Split) -> PlanCandidate:
        one, other = DESIGNS[split.design]
        roles = (Role.PREFILL, Role.DECODE) if other else (Role.MIXED,)
        counts = (split.prompts, split.answers)
        pools = tuple(
            _pool(self._units[kind], count, role, kind)
            for kind, count, role in zip((one, other), counts, roles, strict=False)
        )
        return PlanCandidate(pools=pools, knobs=Knobs(policy="splitwise", max_batch_tokens=2048))


def problem_of(name: str, a100: str, part: WorkloadSlice) -> Problem:
    """A workload under the slowdowns of its median request on A100."""
    base = Scenario(
        workload=WorkloadSpec(name=name, arrivals="poisson", rate=1.0),
        instance=(),
        limits=ScenarioLimits(max_len=MAX_LEN),
    )
    plain = Problem(base=base, goal=Goal())
    rows = rows_of(plain, part, MAX_LEN)
    prompt = int(np.median(rows.prompt_tokens))
    context = prompt + int(np.median(rows.output_tokens)) // 2
    cost = step_cost_of(a100, base.step_times)
    goal = Goal(
        ttft_s=TTFT_TIMES * cost.step_s(StepWork(0, 0, ((prompt, 0),), 1)),
        tpot_s=TPOT_TIMES * cost.step_s(StepWork(1, context, (), 1)),
        unserved_fraction=1.0,
    )
    return Problem(base=base, goal=goal)


def every(name: str, of: dict[str, float], budget: float) -> Iterator[Split]:
    """All splits of a design within a budget."""
    one, other = DESIGNS[name]
    for prompts in range(1, int(budget / of[one] + 1e-9) + 1):
        left = budget - prompts * of[one]
        if not other:
            yield Split(name, prompts, 0)
        for answers in range(1, int(left / of[other] + 1e-9) + 1 if other else 0):
            yield Split(name, prompts, answers)


def whole(name: str, of: dict[str, float], budget: float) -> list[Split]:
    """Those that no other one of the design has all machines of, and more."""
    found = list(every(name, of, budget))
    return [
        each
        for each in found
        if not any(
            other != each and other.prompts >= each.prompts and other.answers >= each.answers
            for other in found
        )
    ]


def _pool(unit: CandidatePool, count: int, role: Role, kind: str) -> CandidatePool:
    return CandidatePool(
        profile=unit.profile,
        device=unit.device,
        tp=unit.tp,
        pp=unit.pp,
        count=count,
        role=role.value,
        power_cap=CAP if kind == "hcap" else 1.0,
    )


def _weights(split: Split) -> tuple[str, str]:
    return f"{split.weight(WATTS):.2f}", f"{split.weight(COST):.2f}"
