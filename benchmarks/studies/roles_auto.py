"""Roles that the load chooses against mixed instances and against every split, under promises.

    python -m benchmarks.studies roles_auto [--instances 4] [--loads sharegpt,hpld] [--seconds 600]

**Capacity**: for each workload and each pair of promises (TTFT, TPOT) the highest rate at which
90 % of the requests keep both, for mixed instances with chunks of several sizes, for every split,
and for the watcher of roles. A run without the watcher decides nothing by the promises, and so
serves every pair. Requests of the first `--warm-up` seconds do not count, for nobody. Rates are a
grid of steps of `--step`; between the last that holds and the next one the capacity is on a
straight line. Rates above one that breaks every pair are not run. The watcher runs from the best
fixed choice's capacity on, up or down to the first rate that tells its own; where no fixed choice
holds at the lowest rate, it does not run and has a dash.

**Expected**: what the watcher's own forecast gives mixed and the splits, fed with the true load and
the profile's step times, against what the simulation came to at the rates that were run.

**Changing**: a load whose mix changes every ten minutes; the watcher against the best one choice.
"""

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.studies import frame
from daemon.lab.profiles.load import load_profile
from daemon.lab.report.measures import measure
from daemon.lab.report.records import Outcome
from daemon.lab.simulator.run import configured, pools_for, prepare
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.roles.forecast import Costs, Fleet, Forecast, Split, forecast
from daemon.roles.load import OfferedLoad
from daemon.state.role import AUTO
from daemon.state.slo import Slo

GOAL = 0.9


class Point(NamedTuple):
    """One run."""

    profile: str
    load: str
    instances: int
    roles: str  # mixed | P:D | auto
    chunk: int  # of mixed ones and of the watcher's; 0: the policy's own
    rate: float
    seconds: float
    warm_up_s: float
    promised: tuple[float, float] | None  # of the watcher
    seed: int


class Seen(NamedTuple):
    """What each request of a run got, but for those of the warm-up."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray
    flips: int
    wall_s: float

    def kept(self, pair: tuple[float, float]) -> float:
        """Share of requests that kept both promises; what never came keeps none."""
        return float(np.mean((self.ttft_s <= pair[0]) & (self.tpot_s <= pair[1])))


def simulated(point: Point, workload: Workload | None = None) -> Seen:
    """Run it."""
    num = math.ceil(point.rate * point.seconds)
    classes = (SloClass(),)
    if point.promised is not None:
        classes = (SloClass(ttft_s=point.promised[0], tpot_s=point.promised[1]),)
    spec = WorkloadSpec(
        name=point.load.partition("+")[0],
        requests=num,
        rate=point.rate,
        seed=point.seed,
        classes=classes,
    )
    scenario = Scenario(
        workload=spec,
        instance=(InstanceGroup(profile=point.profile, count=point.instances),),
        roles=point.roles,
        limits=ScenarioLimits(max_batch_tokens=point.chunk),
        predictor="mean",
        seed=point.seed,
    )
    log = frame.simulated(scenario, workload).log
    requests, measures = log.requests, measure(log.requests)
    counted = requests.arrival_s - requests.arrival_s[0] >= point.warm_up_s
    done = requests.outcome == Outcome.FINISHED
    ttft = np.where(done, measures.ttft_s, np.inf)
    tpot = np.where(requests.output_tokens > 1, measures.tpot_s, 0.0)
    return Seen(ttft[counted], np.where(done, tpot, np.inf)[counted], log.flips, log.wall_s)


def capacity(rates: Sequence[float], kept: Sequence[float]) -> float:
    """The highest rate at which GOAL is kept, on straight lines between rates that were tried; all
    lower ones must keep it too.
    """
    for index, share in enumerate(kept):
        if share < GOAL:
            if index == 0:
                return 0.0
            before = kept[index - 1]
            part = (before - GOAL) / max(1e-9, before - share)
            return rates[index - 1] + part * (rates[index] - rates[index - 1])
    return rates[-1]


def expected(point: Point, pair: tuple[float, float], split: Split) -> Forecast:
    """What the forecast gives, fed with the requests that count."""
    num = math.ceil(point.rate * point.seconds)
    spec = WorkloadSpec(name=point.load, requests=num, rate=point.rate, seed=point.seed)
    requests = build(spec, load_profile(point.profile).model.context_len)
    since_s = requests.arrival_s - requests.arrival_s[0]
    counted = since_s >= point.warm_up_s
    prompts, answers = requests.prompt_tokens[counted], requests.output_tokens[counted]
    rate = counted.sum() / (since_s[-1] - point.warm_up_s)
    load = OfferedLoad(
        float(rate),
        *(tuple(prompts.tolist()), tuple(answers.tolist()), float(answers.mean())),
        answered=tuple(prompts.tolist()),
    )
    return forecast(load, fleet_of(point), Slo(*pair), split)


def fleet_of(point: Point) -> Fleet:
    """The instances as a watcher comes to know them, from the profile's own fit of phases."""
    profile = load_profile(point.profile)
    step = profile.step
    base, linear, square = step.prefill_s
    draw, context, row = step.decode_s
    scenario = Scenario(
        workload=WorkloadSpec(name="sharegpt", requests=1, rate=1.0),
        instance=(InstanceGroup(profile=point.profile),),
        limits=ScenarioLimits(max_batch_tokens=point.chunk),
    )
    prepared = prepare(scenario)
    config = configured(prepared)
    (pool,) = pools_for(scenario, prepared.profiles, prepared.groups)
    own = config.instances[0]
    link = profile.device.peer_link
    blocks = 300 / config.block_size
    return Fleet(
        Costs(draw, row, context, linear, square),
        Costs(base, row, context, linear, square),
        kv_tokens=pool.num_blocks * config.block_size,
        max_running=own.max_running,
        budget_tokens=own.max_batch_tokens,
        chunk_tokens=own.prefill_chunk,
        transfer_s=blocks * pool.block_bytes / link.bytes_per_s if link.bytes_per_s else 0.0,
    )


def splits(instances: int) -> list[str]:
    """Every split, as a scenario writes it."""
    return [f"{count}:{instances - count}" for count in range(1, instances)]


def asked_splits(arguments: argparse.Namespace, instances: int) -> list[str]:
    """Those to compare with: those with too few decoders take very long and keep nothing."""
    return arguments.splits.split(",") if arguments.splits else splits(instances)


def rates_of(arguments: argparse.Namespace, load: str, instances: int) -> list[float]:
    """A grid from where few promises bind to where none is kept, the same for all choices."""
    rough = expected_capacity(arguments.profile, load, instances)
    steps = np.arange(arguments.low, arguments.high + 1e-9, arguments.step)
    return [round(float(rough * one), 2) for one in steps]


def expected_capacity(profile: str, load: str, instances: int) -> float:
    """The rate that all devices together could compute if nothing were promised."""
    point = Point(profile, load, instances, "mixed", 0, 1.0, 1.0, 0.0, None, 0)
    fleet = fleet_of(point)
    spec = WorkloadSpec(name=load, requests=2000, rate=1.0)
    requests = build(spec, load_profile(profile).model.context_len)
    prompts, answers = requests.prompt_tokens.astype(float), requests.output_tokens.astype(float)
    costs = fleet.costs
    work = costs.prompt_s * prompts + costs.pair_s * prompts**2
    work += answers * (costs.decode_s + costs.context_s * (prompts + answers / 2.0))
    return instances / float(work.mean())


def ladder(base: Point, rates: Sequence[float], pairs: Sequence[tuple[float, float]]) -> list[Seen]:
    """Runs at the lowest rates, up to the first by which every pair of promises was broken once:
    those above it tell no capacity.
    """
    runs: list[Seen] = []
    open_pairs = set(pairs)
    for rate in rates:
        runs.append(simulated(base._replace(rate=rate)))
        open_pairs = {pair for pair in open_pairs if runs[-1].kept(pair) >= GOAL}
        if not open_pairs:
            break
    return runs


def searched(
    base: Point, rates: Sequence[float], best: float, pair: tuple[float, float]
) -> dict[float, tuple[float, int]]:
    """(share kept, flips) by rate of runs under these promises: from the highest rate that the best
    static choice serves on, up while they are kept, or down while they are not.
    """
    asked = base._replace(promised=pair)
    start = max(index for index, rate in enumerate(rates) if rate <= best + 1e-9)
    runs: dict[float, tuple[float, int]] = {}

    def holds(index: int) -> bool:
        seen = simulated(asked._replace(rate=rates[index]))
        runs[rates[index]] = seen.kept(pair), seen.flips
        return seen.kept(pair) >= GOAL

    index = start
    if holds(index):
        while index + 1 < len(rates) and holds(index + 1):
            index += 1
    else:
        while index > 0 and not holds(index - 1):
            index -= 1
    return dict(sorted(runs.items()))


def capacities(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    """The table of capacities, and how far forecasts are off."""
    pairs = [promised_pair(one) for one in frame.listed(arguments.slo)]
    heads = "Load", "Instances", "TTFT/TPOT", "Mixed (chunk)", "Best split", "Auto", "Auto/split"
    frame.heads(*heads, "Auto/mixed", "Flips")
    off: list[tuple[float, str]] = []
    for load in frame.listed(arguments.loads):
        for instances in map(int, frame.listed(arguments.instances)):
            rates = rates_of(arguments, load, instances)
            base = Point(
                *(arguments.profile, load, instances, "", 0, 0.0, arguments.seconds),
                *(arguments.warm_up, None, arguments.seed),
            )
            seen = fixed_runs(arguments, pool, base, rates, pairs)
            for pair in pairs:
                off += compared(base, rates, pair, seen)
            rows(arguments, pool, base, rates, pairs, seen)
    told_errors(off)


def fixed_runs(
    arguments: argparse.Namespace,
    pool: ProcessPoolExecutor,
    base: Point,
    rates: list[float],
    pairs: list[tuple[float, float]],
) -> dict[tuple[str, int], list[Seen]]:
    """Of mixed with each chunk and of every split: the runs at the lowest rates."""
    fixed = [("mixed", int(one)) for one in arguments.chunks.split(",")]
    fixed += [(one, 0) for one in asked_splits(arguments, base.instances)]
    points = [base._replace(roles=roles, chunk=chunk) for roles, chunk in fixed]
    seen = {}
    climbed = pool.map(partial(ladder, rates=rates, pairs=pairs), points)
    for key, runs in zip(fixed, climbed, strict=True):
        seen[key] = runs
        if arguments.verbose:
            spent = f"{len(runs)} rates, {sum(one.wall_s for one in runs):.0f} s"
            print(f"    {key[0]} ({key[1] or 'own'}): {spent}", flush=True)
    return seen


def rows(
    arguments: argparse.Namespace,
    pool: ProcessPoolExecutor,
    base: Point,
    rates: list[float],
    pairs: list[tuple[float, float]],
    seen: dict[tuple[str, int], list[Seen]],
) -> None:
    """For each pair of promises the watcher's runs, and a row."""
    every = []
    for pair in pairs:
        found = {
            key: capacity(rates, [one.kept(pair) for one in runs]) for key, runs in seen.items()
        }
        best = max(found.values())
        auto = base._replace(roles=AUTO)
        runs = pool.submit(searched, auto, rates, best, pair) if best else None
        every.append((pair, found, runs))
    for pair, found, running in every:
        row(base, pair, found, running.result() if running else {})
        if arguments.verbose and running:
            told = [f"{rate:.2f}: {kept:.3f}" for rate, (kept, _) in running.result().items()]
            print("   ", ", ".join(told), flush=True)


def row(
    base: Point,
    pair: tuple[float, float],
    found: dict[tuple[str, int], float],
    runs: dict[float, tuple[float, int]],
) -> None:
    """One pair of promises; without runs of the watcher it has a dash."""
    best = max(found, key=lambda key: found[key])
    mixed = max((key for key in found if key[0] == "mixed"), key=lambda key: found[key])
    split = max((key for key in found if key[0] != "mixed"), key=lambda key: found[key])
    auto = capacity(list(runs), [kept for kept, _ in runs.values()]) if runs else 0.0
    frame.row([
        base.load, base.instances, f"{pair[0]:g}/{pair[1]:g}",
        f"{found[mixed]:.1f} ({mixed[1] or 'own'})", f"{found[split]:.1f} ({split[0]})",
        f"{auto:.1f}" if runs else "-",
        f"{auto / found[best]:.2f}" + ("" if best == split else " of mixed") if runs else "-",
        f"{auto / found[mixed]:.2f}" if runs and found[mixed] else "-",
        ",".join(str(flips) for _, flips in runs.values()) or "-",
    ])  # fmt: skip


def promised_pair(words: str) -> tuple[float, float]:
    """(TTFT, TPOT) in seconds, from `TTFT/TPOT`."""
    ttft, tpot = words.split("/")
    return float(ttft), float(tpot)


def compared(
    base: Point,
    rates: list[float],
    pair: tuple[float, float],
    seen: dict[tuple[str, int], list[Seen]],
) -> list[tuple[float, str]]:
    """(forecast - simulated, what) of each choice and rate that ran."""
    told = []
    for (roles, chunk), runs in seen.items():
        split = Split(0, base.instances)
        if roles != "mixed":
            split = Split(*map(int, roles.split(":")))
        for rate, one in zip(rates, runs, strict=False):
            point = base._replace(roles=roles, chunk=chunk, rate=rate)
            was, said = one.kept(pair), expected(point, pair, split)
            words = f"{base.load} {rate:.1f}/s {pair[0]:g}/{pair[1]:g} {roles} ({chunk or 'own'}): "
            words += f"{said.attainment:.2f} for {was:.2f}"
            told.append((said.attainment - was, words))
    return told


def told_errors(off: list[tuple[float, str]]) -> None:
    """How far the forecasts are off, and the worst of them."""
    errors = np.array([one for one, _ in off])
    if errors.size:
        print(
            f"\nForecasts: {errors.size}, off by {np.abs(errors).mean():.3f} in the mean "
            f"({errors.mean():+.3f}), 90 % within {np.quantile(np.abs(errors), 0.9):.3f}; worst:"
        )
        for _, words in sorted(off, key=lambda one: -abs(one[0]))[:12]:
            print(f"  {words}")


def changing(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    """A load whose mix changes every ten minutes."""
    pair = promised_pair(arguments.changing)
    instances = int(frame.listed(arguments.instances)[0])
    loads = arguments.mixes.split(",")
    workload = phased(arguments, loads, instances)
    base = Point(
        *(arguments.profile, loads[0], instances, "", 0, workload.rate, 0.0),
        *(arguments.warm_up, None, arguments.seed),
    )
    choices = ["mixed", *asked_splits(arguments, instances), AUTO]
    points = [base._replace(roles=one, promised=pair if one == AUTO else None) for one in choices]
    runs = list(pool.map(partial(simulated, workload=promising(workload, pair)), points))
    length = f"{arguments.phase_s:.0f} s each"
    print(f"\n{' then '.join(loads)}, {length}, promises {pair[0]:g}/{pair[1]:g}:")
    for choice, one in zip(choices, runs, strict=True):
        print(f"  {choice:>6}: {one.kept(pair):.3f} kept, {one.flips} flips")


def promising(workload: Workload, pair: tuple[float, float]) -> Workload:
    """The same workload with these promises."""
    return replace(workload, classes=(SloClass(ttft_s=pair[0], tpot_s=pair[1]),))


def phased(arguments: argparse.Namespace, loads: list[str], instances: int) -> Workload:
    """Named workloads one after the other, each at a share of what the devices could compute."""
    context = load_profile(arguments.profile).model.context_len
    parts = []
    for number in range(arguments.phases):
        name = loads[number % len(loads)]
        rate = arguments.share * expected_capacity(arguments.profile, name, instances)
        spec = WorkloadSpec(
            name=name,
            requests=math.ceil(rate * arguments.phase_s),
            rate=rate,
            seed=arguments.seed + number,
        )
        parts.append(build(spec, context))
    times = [one.arrival_s + arguments.phase_s * number for number, one in enumerate(parts)]
    order = np.argsort(np.concatenate(times), kind="stable")
    return Workload(
        label="phases",
        arrival_s=np.concatenate(times)[order],
        prompt_tokens=np.concatenate([one.prompt_tokens for one in parts])[order],
        output_tokens=np.concatenate([one.output_tokens for one in parts])[order],
        slo_class=np.zeros(order.size, np.uint8),
    )


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--instances", default="4,8")
    parser.add_argument("--loads", default="sharegpt,hpld,lphd")
    parser.add_argument("--slo", default="0.25/0.03,1/0.03,0.5/0.04,2/0.1", help="TTFT/TPOT, ...")
    parser.add_argument("--chunks", default="128,256,0", help="of mixed; 0: the policy's own, 512")
    parser.add_argument("--splits", default="", help="P:D, ...; default: all of them")
    parser.add_argument("--seconds", type=float, default=600.0, help="of arrivals, a run")
    parser.add_argument("--warm-up", type=float, default=120.0)
    parser.add_argument("--low", type=float, default=0.1, help="share of what devices could do")
    parser.add_argument("--high", type=float, default=0.9)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--changing", default="1/0.035", help="promises; empty: left out")
    parser.add_argument("--mixes", default="hpld,lphd")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--phase-s", type=float, default=600.0)
    parser.add_argument("--share", type=float, default=0.3, help="of what devices could compute")
    parser.add_argument("--only-changing", action="store_true")
    parser.add_argument("--verbose", action="store_true")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    with ProcessPoolExecutor(arguments.workers) as pool:
        if not arguments.only_changing:
            capacities(arguments, pool)
        if arguments.changing:
            changing(arguments, pool)
