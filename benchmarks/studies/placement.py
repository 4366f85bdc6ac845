"""How many instances a rate needs under each placement, and how long a decision takes.

For each upper bound a rate is asked of up to so many equal instances: `--load` requests a second
for each of them. The smallest number is searched by bisection at which 99 % of all requests, over
all seeds, keep both promises (`--ttft`, `--tpot`; `--least` asks for another share). Decisions are
timed in the same runs.

    python -m benchmarks.studies placement [--bounds 8,16,32,64] [--load 10] [--seconds 60]
        [--seeds 2] [--predictors noisy:0.5,mean] [--placements jsq,aladdin] [--workload sharegpt]
    python -m benchmarks.studies placement --bounds 8 --seconds 20 --seeds 1 --predictors noisy:0.5
    python -m benchmarks.studies placement --decisions
    python -m benchmarks.studies placement --decode-alone --ttft 0.6 --tpot 0.03 --least 1
        --placements jsq,power_of_two,least_loaded,aladdin --predictors oracle,noisy:0.5

The second takes about two minutes. The last is Aladdin's Figure 12: workers for answers alone, to
which prompts come with their keys and values, without any time; its SLOs of a model of 13 billion
parameters, for all requests (P100). The third times decisions alone, of each placement, among 64
instances on which 64 sequences run each: where a few of them had steps since the decision before,
as where many requests come, and where all had.
"""

import argparse
import time
from collections.abc import Iterable
from collections.abc import Sequence as Listing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.studies import frame
from daemon.core.core import Core
from daemon.core.values.actions import Submit
from daemon.core.values.events import (
    Configured,
    Event,
    InstanceConfig,
    PlacementChosen,
    Predicted,
    RequestArrived,
    StepDone,
    WorkerReady,
)
from daemon.cost.profile import PhaseFit
from daemon.cost.step_time import Float64
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.placement import PLACEMENTS
from daemon.state.role import Role
from daemon.state.sequence import Sequence

_ARRIVED_S = 0.005
"""A step that only takes prompts in, at workers for answers alone."""
_WHOLE_TOKENS = 8192
"""Their token budget: a prompt's keys and values come at once."""


class Setting(NamedTuple):
    """What all runs have in common."""

    profile: str
    workload: str
    seconds: float
    seeds: int
    promise: SloClass
    least: float  # the share of requests that has to keep both promises
    decode_alone: bool  # no step's time is a prompt's


class Trial(NamedTuple):
    """What came of a number of instances, over all seeds."""

    attainment: float
    decision_s: Float64


def tried(setting: Setting, placement: str, predictor: str, rate: float, count: int) -> Trial:
    """Simulate so many instances, once for each seed."""
    shares, taken = [], []
    budget = _WHOLE_TOKENS if setting.decode_alone else 0
    limits = ScenarioLimits(max_batch_tokens=budget, prefill_chunk=budget)
    for seed in range(setting.seeds):
        spec = WorkloadSpec(
            name=setting.workload,
            requests=max(1, round(rate * setting.seconds)),
            rate=rate,
            seed=seed,
            classes=(setting.promise,),
        )
        scenario = Scenario(
            workload=spec,
            instance=(InstanceGroup(profile=setting.profile, count=count),),
            placement=placement,
            predictor=predictor,
            seed=seed,
            limits=limits,
        )
        report, log = frame.simulated(scenario)
        shares.append(report.slo_attainment or 0.0)
        taken.append(log.decision_s)
    return Trial(float(np.mean(shares)), np.concatenate(taken))


def needed(
    setting: Setting, placement: str, predictor: str, rate: float, bound: int
) -> tuple[int, Trial]:
    """(the smallest number that is enough, its trial); one more than the bound: none is."""
    too_few, enough = 0, bound + 1
    best = tried(setting, placement, predictor, rate, bound)
    if best.attainment < setting.least:
        return enough, best
    enough = bound
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        trial = tried(setting, placement, predictor, rate, middle)
        if trial.attainment >= setting.least:
            enough, best = middle, trial
        else:
            too_few = middle
    return enough, best


def in_us(taken_s: Float64) -> list[str]:
    """Two cells: p50 and p99."""
    if not taken_s.size:
        return ["-", "-"]
    return [f"{time_us:,.0f}" for time_us in 1e6 * np.percentile(taken_s, (50, 99))]


class FullCore:
    """A Core on each of whose instances so many sequences draw tokens."""

    def __init__(self, instances: int, running: int) -> None:
        limits = 16, 256, 512, 512, 1 << 30, 4096, True, 1
        names = (f"i{number}" for number in range(instances))
        homes = tuple(InstanceConfig(name, Role.MIXED, "cuda", ahead=True) for name in names)
        self.core = Core(Configured(0.0, homes, "gittins", *limits))
        self.now = 0.0
        self._steps: dict[int, tuple[int, int]] = {}
        chance = np.random.default_rng(0)
        for index in range(instances):
            self.handle(WorkerReady(0.0, index, 4000, 1 << 20, 0.02, token_s=1e-4))
        for request in range(instances * running):
            prompt, answer = (int(each) for each in chance.integers(20, 700, 2))
            self.handle(RequestArrived(0.0, request, prompt, 2000))
            self.handle(Predicted(0.0, request, answer + 100))
        for _ in range(2 * running):
            self.step(range(instances))

    def handle(self, event: Event) -> None:
        """Have the Core handle it, and note which steps it submits."""
        for action in self.core.handle(event):
            if isinstance(action, Submit):
                batch = action.batch
                self._steps[batch.instance] = batch.step, int(np.count_nonzero(batch.samples))

    def step(self, instances: Iterable[int]) -> None:
        """A step of each of these instances answers."""
        self.now += 0.02
        for index in instances:
            step, rows = self._steps.pop(index)
            self.handle(StepDone(self.now, index, step, np.zeros(rows, np.uint8), 0.02))


def decision_s(full: FullCore, changing: int, count: int) -> Float64:
    """The times of so many decisions, before each of which so many instances have a step."""
    core, chance, taken = full.core, np.random.default_rng(1), []
    for number in range(count):
        first = number * changing
        full.step((first + each) % len(core.instances) for each in range(changing))
        prompt, answer = (int(each) for each in chance.integers(20, 700, 2))
        newcomer = Sequence((1 << 30) + number, prompt, 2000, 0, full.now, 1 << 30)
        newcomer.predicted_tokens = answer
        began_s = time.perf_counter()
        core.dispatch.choose(newcomer, core.instances, Role.PREFILL, full.now)
        taken.append(time.perf_counter() - began_s)
    return np.array(taken)


def decisions(placements: Listing[str], count: int = 400) -> None:
    """Print how long each placement takes among 64 instances with 64 sequences each."""
    frame.heads("Placement", "4 had steps: p50, us", "p99, us", "all had: p50, us", "p99, us")
    for name in placements:
        full = FullCore(64, 64)
        full.handle(PlacementChosen(full.now, name))
        few, all_of_them = (in_us(decision_s(full, changing, count)) for changing in (4, 64))
        frame.row([name, *few, *all_of_them])


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--bounds", default="8,16,32,64", metavar="N,N")
    parser.add_argument("--load", type=float, default=10.0, help="rate for each of a bound")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--predictors", default="noisy:0.5,mean", metavar="P,P")
    parser.add_argument("--placements", default=",".join(PLACEMENTS), metavar="P,P")
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--workload", default="sharegpt")
    parser.add_argument("--ttft", type=float, default=2.0, help="promised, in seconds")
    parser.add_argument("--tpot", type=float, default=0.1, help="likewise")
    parser.add_argument("--least", type=float, default=0.99, help="share that keeps both")
    parser.add_argument("--decode-alone", action="store_true", help="prompts take no time")
    parser.add_argument("--decisions", action="store_true", help="time decisions alone")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    placements = frame.listed(arguments.placements)
    if arguments.decisions:
        decisions(placements)
        return
    with TemporaryDirectory() as folder:
        profile = arguments.profile
        if arguments.decode_alone:
            profile = without_prompts(profile, Path(folder))
        table(arguments, profile, placements)


def without_prompts(name: str, folder: Path) -> str:
    """The file of a profile whose prompts come with their keys and values: they take no time."""
    profile = load_profile(name)
    if not isinstance(profile.step, PhaseFit):
        raise ProfileError(f"{name}: prompts and decodes are told apart by a fit of phases alone")
    step = msgspec.structs.replace(profile.step, prefill_s=(_ARRIVED_S, 0.0, 0.0))
    path = folder / "decode-alone.json"
    save_profile(msgspec.structs.replace(profile, step=step), path)
    return str(path)


def table(arguments: argparse.Namespace, profile: str, placements: Listing[str]) -> None:
    """Print the number of instances that each placement needs."""
    promise = SloClass("all", 1.0, ttft_s=arguments.ttft, tpot_s=arguments.tpot)
    common = profile, arguments.workload, arguments.seconds, arguments.seeds
    setting = Setting(*common, promise, arguments.least, arguments.decode_alone)
    heads = "Rate", "Bound", "Predictions", "Placement", "Needed", "Attainment", "p50, us"
    frame.heads(*heads, "p99, us")
    for bound in map(int, frame.listed(arguments.bounds)):
        rate = arguments.load * bound
        for predictor in frame.listed(arguments.predictors):
            for placement in placements:
                count, trial = needed(setting, placement, predictor, rate, bound)
                shown = f"over {bound}" if count > bound else str(count)
                cells = f"{rate:g}/s", bound, predictor, placement, shown
                frame.row([*cells, f"{trial.attainment:.2%}", *in_us(trial.decision_s)])
