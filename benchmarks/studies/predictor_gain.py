"""What fraction of the oracle's scheduling gain each predictor keeps, on real answers.

Requests are drawn from the last 30 % of the data set of benchmarks.predictors, in any order, and
sent to the simulator: first come first served, and a policy with every predictor. All of them swap
alike (proactively), so that nothing but the order differs. Predictors learn from answers as they
end there, as in a daemon; before that they have gone through the first 70 %, unless they are cold.
Kept: the fall of the mean below that of first come first served, as a share of the oracle's fall;
of JCT, and of JCT by output token. `constant` says the same of everyone: what it keeps is the gain
of preemption without any knowledge of lengths; `none` says nothing.

    python -m benchmarks.studies predictor_gain [--policies srtf,speculative] [--load 0.9]
        [--seeds 3] [--drift 2] [--cold]

--load is the rate as a share of what `sarathi` serves when all requests are there at once.
--drift makes the answers of the second half of the run so many times as long, within a limit that
is as many times the data set's (as long, for less than 1), from the beginning.
"""

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.answers import DEFAULT, Answers, load
from benchmarks.predictors import LEARNED_SHARE, untold
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import Options, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import Workload, WorkloadSpec
from daemon.length_models.prediction import Asked, Prediction, Predictor
from daemon.length_models.registry import length_predictor
from daemon.length_models.store import VectorStore
from daemon.memory.swap_space import PROACTIVE

BASELINE = "sarathi"
KINDS = "none,constant,mean,features,retrieval,oracle"


class Constant:
    """Says the same of everyone."""

    declared = "constant"

    def __init__(self, num_tokens: int) -> None:
        self._said = Prediction(num_tokens, num_tokens)

    def predict(self, asked: Asked) -> Prediction:
        """The constant."""
        return self._said

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """It learns nothing."""


class Told:
    """A predictor that is told of each request what the data set knows, where the simulator has
    counts alone. Requests are told apart by the guess, which comes back with the answer.
    """

    def __init__(self, predictor: Predictor, kind: str, shown: list[Asked]) -> None:
        """`shown`: the requests in order of arrival."""
        self.declared = predictor.declared
        self._predictor = predictor
        self._shown = [untold(one, kind) for one in shown]
        self._guesses: list[float] = []

    def predict(self, asked: Asked) -> Prediction:
        """What it says of the next request."""
        number = len(self._guesses)
        shown = msgspec.structs.replace(self._shown[number], chance=asked.chance)
        said = self._predictor.predict(shown)
        self._guesses.append(said.guess)
        return msgspec.structs.replace(said, guess=float(number))

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """It learns."""
        number = int(asked.guess)
        shown = msgspec.structs.replace(self._shown[number], guess=self._guesses[number])
        self._predictor.observe(shown, num_tokens)


@dataclass(frozen=True)
class Means:
    """Means over requests and seeds."""

    jct_s: float
    token_s: float  # JCT by output token
    p99_s: float  # of JCT


class Bench:
    """Requests drawn from the data set, on one simulated instance."""

    def __init__(self, answers: Answers, arguments: argparse.Namespace) -> None:
        self._first = int(LEARNED_SHARE * len(answers))
        self._num_requests: int = arguments.requests
        self._drift: float = arguments.drift
        self._cold: bool = arguments.cold
        self._usual = round(float(np.median(answers.output_tokens)))
        limit = 1.0 if self._drift == 1.0 else max(1.0, self._drift)
        self._asked = [
            msgspec.structs.replace(one, max_tokens=round(limit * one.max_tokens))
            for one in answers.asked()
        ]
        self._scenario = Scenario(
            workload=WorkloadSpec(name="answers"),
            instance=(InstanceGroup(profile=arguments.profile, kv_bytes=arguments.kv_bytes),),
            predictor="none",
            limits=ScenarioLimits(max_len=2048, swap=PROACTIVE),
        )
        whole = self.report(BASELINE, 0, float("inf"), "none")
        self.rate_rps = arguments.load * self._num_requests / whole.virtual_s

    def drawn(self, seed: int) -> list[Asked]:
        """Requests that were not learned from before, with their true lengths."""
        chance = np.random.default_rng(seed)
        rows = chance.integers(self._first, len(self._asked), self._num_requests)
        stretch = np.where(np.arange(rows.size) < rows.size // 2, 1.0, self._drift)
        return [
            msgspec.structs.replace(asked, truth=max(1, round(asked.truth * factor)))
            for asked, factor in zip((self._asked[row] for row in rows), stretch, strict=True)
        ]

    def report(self, policy: str, seed: int, rate_rps: float, kind: str) -> Report:
        """One run, with Poisson arrivals."""
        shown = self.drawn(seed)
        gaps_s = np.random.default_rng([seed, 1]).exponential(1.0 / rate_rps, len(shown))
        workload = Workload(
            label="answers drawn with replacement",
            arrival_s=np.cumsum(gaps_s) - gaps_s[0],
            prompt_tokens=np.array([one.num_prompt_tokens for one in shown], np.int32),
            output_tokens=np.array([one.truth for one in shown], np.int32),
            slo_class=np.zeros(len(shown), np.uint8),
        )
        scenario = msgspec.structs.replace(self._scenario, policy=policy, seed=seed)
        prepared = prepare(scenario, workload)
        predictor = self._predictor(kind)
        told = None if predictor is None else Told(predictor, kind, shown)
        return report_of(prepared, run(prepared, Options(predictor=told)))

    def _predictor(self, kind: str) -> Predictor | None:
        """One that knows the first part of the data set, unless it begins cold."""
        if kind == "constant":
            return Constant(self._usual)
        store = VectorStore()
        if not self._cold:
            for one in self._asked[: self._first]:
                store.add(untold(one, kind), one.truth)
        return length_predictor(kind, store)

    def means(self, policy: str, seeds: int, kind: str) -> Means:
        """Over so many seeds."""
        reports = [self.report(policy, seed, self.rate_rps, kind) for seed in range(seeds)]
        return Means(
            statistics.fmean(report.jct_s.mean or 0.0 for report in reports),
            statistics.fmean(report.normalized_latency_s.mean or 0.0 for report in reports),
            statistics.fmean(report.jct_s.p99 or 0.0 for report in reports),
        )


def _kept(baseline: float, oracle: float, found: float) -> str:
    gain = baseline - oracle
    return f"{(baseline - found) / gain:7.0%}" if gain > 0.0 else "no gain"


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--data", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--kinds", default=KINDS, metavar="K,K", help="default: %(default)s")
    parser.add_argument("--policies", default="speculative,gittins", metavar="P,P")
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--kv-bytes", type=float, default=12e9)
    parser.add_argument("--load", type=float, default=0.9, help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=3000, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--drift", type=float, default=1.0, help="default: %(default)s: none")
    parser.add_argument("--cold", action="store_true", help="default: they learned before")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    kinds = list(dict.fromkeys([*arguments.kinds.split(","), "oracle"]))
    bench = Bench(load(arguments.data), arguments)
    baseline = bench.means(BASELINE, arguments.seeds, "none")
    print(
        f"{bench.rate_rps:.2f} requests/s; {BASELINE} with the same swaps: mean JCT "
        f"{baseline.jct_s:.2f} s, {baseline.token_s:.4f} s/token, P99 JCT {baseline.p99_s:.1f} s\n"
        f"{'policy':12}{'predictor':12}{'JCT':>9}{'kept':>8}{'s/token':>10}{'kept':>8}"
        f"{'P99 JCT':>9}"
    )
    for policy in arguments.policies.split(","):
        found = {kind: bench.means(policy, arguments.seeds, kind) for kind in kinds}
        best = found["oracle"]
        for kind, one in found.items():
            jct, token = (
                _kept(baseline.jct_s, best.jct_s, one.jct_s),
                _kept(baseline.token_s, best.token_s, one.token_s),
            )
            print(
                f"{policy:12}{kind:12}{one.jct_s:7.2f} s{jct:>8}{one.token_s:10.4f}{token:>8}"
                f"{one.p99_s:7.1f} s",
                flush=True,
            )
