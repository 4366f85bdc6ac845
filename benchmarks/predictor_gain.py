"""What fraction of the oracle's scheduling gain each predictor keeps, on real answers.

Predictors go through the data set as in benchmarks.predictors. Requests are then drawn from its
last 30 %, with what was said of them, and sent to the simulator: first come first served, and a
policy that orders by length with every predictor. All of them swap alike (proactively), so that
nothing but the order differs. Kept: the fall of the mean JCT below that of first come first served,
as a share of the oracle's fall. `constant` says the same of everyone: what it keeps is the gain of
preemption without any knowledge of lengths.

    python -m benchmarks.predictor_gain [--policies srtf,speculative] [--load 0.9] [--seeds 3]

--load is the rate as a share of what `sarathi` serves when all requests are there at once.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.answers import DEFAULT, Answers, load
from benchmarks.predictors import KINDS, LEARNED_SHARE, predicted
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import Workload, WorkloadSpec
from daemon.length_models.prediction import Asked, Prediction
from daemon.memory.swap_space import PROACTIVE

BASELINE = "sarathi"


class Recorded:
    """Says again what was said of each request, in order of arrival."""

    declared = "recorded"

    def __init__(self, said: list[Prediction]) -> None:
        self._said: Iterator[Prediction] = iter(said)

    def predict(self, asked: Asked) -> Prediction:
        """The next one."""
        return next(self._said)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """It was all learned before."""


class Bench:
    """Requests drawn from the data set, on one simulated instance."""

    def __init__(self, answers: Answers, arguments: argparse.Namespace) -> None:
        self._answers = answers
        self._first = int(LEARNED_SHARE * len(answers))
        self._num_requests: int = arguments.requests
        self._scenario = Scenario(
            workload=WorkloadSpec(name="answers"),
            instance=(InstanceGroup(profile=arguments.profile, kv_bytes=arguments.kv_bytes),),
            predictor="none",
            limits=ScenarioLimits(max_len=2048, swap=PROACTIVE),
        )
        whole = self.report(BASELINE, 0, float("inf"), None)
        self.rate_rps = arguments.load * self._num_requests / whole.virtual_s

    def drawn(self, seed: int, rate_rps: float) -> tuple[Workload, list[int]]:
        """A Poisson workload of requests that were not only learned from, and which they are."""
        chance = np.random.default_rng(seed)
        rows = chance.integers(self._first, len(self._answers), self._num_requests)
        gaps_s = chance.exponential(1.0 / rate_rps, rows.size)
        workload = Workload(
            label="answers drawn with replacement",
            arrival_s=np.cumsum(gaps_s) - gaps_s[0],
            prompt_tokens=self._answers.prompt_tokens[rows],
            output_tokens=np.maximum(self._answers.output_tokens[rows], 1),
            slo_class=np.zeros(rows.size, np.uint8),
        )
        return workload, rows.tolist()

    def report(
        self, policy: str, seed: int, rate_rps: float, said: list[Prediction] | None
    ) -> Report:
        """One run; without predictions where `said` is None."""
        workload, rows = self.drawn(seed, rate_rps)
        scenario = msgspec.structs.replace(self._scenario, policy=policy, seed=seed)
        prepared = prepare(scenario, workload)
        predictor = None if said is None else Recorded([said[row] for row in rows])
        return report_of(prepared, run(prepared, Options(predictor=predictor)))

    def jct_s(self, policy: str, seeds: int, said: list[Prediction] | None) -> float:
        """Mean over requests and seeds."""
        reports = [self.report(policy, seed, self.rate_rps, said) for seed in range(seeds)]
        return statistics.fmean(report.jct_s.mean or 0.0 for report in reports)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="K,K")
    parser.add_argument("--policies", default="srtf", metavar="P,P")
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--kv-bytes", type=float, default=12e9)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    answers = load(arguments.data)
    bench = Bench(answers, arguments)
    said = {kind: predicted(answers, kind).said for kind in arguments.kinds.split(",")}
    said["oracle"] = predicted(answers, "oracle").said
    usual = round(float(np.median(answers.output_tokens)))
    said["constant"] = [Prediction(usual, usual)] * len(answers)
    baseline_s = bench.jct_s(BASELINE, arguments.seeds, None)
    print(
        f"{bench.rate_rps:.2f} requests/s; {BASELINE} with the same swaps: "
        f"mean JCT {baseline_s:.2f} s"
    )
    for policy in arguments.policies.split(","):
        found_s = {kind: bench.jct_s(policy, arguments.seeds, one) for kind, one in said.items()}
        gain_s = baseline_s - found_s["oracle"]
        for kind, jct_s in found_s.items():
            kept = (
                f"keeps {(baseline_s - jct_s) / gain_s:.1%}" if gain_s > 0.0 else "no gain to keep"
            )
            print(f"{policy:12} {kind:12} mean JCT {jct_s:6.2f} s, {kept}")


if __name__ == "__main__":
    main()
