"""Roles that the load chooses against mixed instances and against every split, under promises.

    python -m benchmarks.roles_auto [--instances 4] [--loads sharegpt,hpld] [--seconds 600]

**Capacity**: for each workload and each pair of promises (TTFT, TPOT) the highest rate at which
90 % of the requests keep both, for mixed instances with chunks of several sizes, for every split,
and for the watcher of roles. A run without the watcher decides nothing by the promises, and so
serves every pair. Requests of the first `--warm-up` seconds do not count, for nobody. Rates are a
grid of steps of `--step`; between the last that holds and the next one the capacity is on a
straight line.

**Expected**: what the watcher's own forecast gives mixed and the splits, fed with the true load and
the profile's step times, against what the simulation came to.

**Changing**: a load whose mix changes every ten minutes; the watcher against the best one choice.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from daemon.lab.profiles.load import load_profile
from daemon.lab.report.measures import measure
from daemon.lab.report.records import Outcome
from daemon.lab.simulator.run import configured, pools_for, prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.role import AUTO
from daemon.roles.forecast import Costs, Fleet, Forecast, Split, forecast
from daemon.roles.load import OfferedLoad, Promised

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
    prepared = prepare(scenario, workload)
    log = run(prepared)
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
    """What the forecast gives, fed with the truth."""
    profile = load_profile(point.profile)
    spec = WorkloadSpec(name=point.load, requests=2000, rate=point.rate, seed=point.seed)
    requests = build(spec, profile.model.context_len)
    prompts, answers = requests.prompt_tokens[:256].tolist(), requests.output_tokens.tolist()
    load = OfferedLoad(
        point.rate, tuple(prompts), tuple(answers[:256]), sum(answers) / len(answers)
    )
    return forecast(load, fleet_of(point), Promised(*pair), split)


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


def tell(cells: Iterable[object]) -> None:
    """A row of a table."""
    print("| " + " | ".join(str(one) for one in cells) + " |", flush=True)


def capacities(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    """The table of capacities, and how far forecasts are off."""
    pairs = [tuple(map(float, one.split("/"))) for one in arguments.slo.split(",")]
    chunks = [int(one) for one in arguments.chunks.split(",")]
    tell(["Load", "Instances", "TTFT/TPOT", "Mixed (chunk)", "Best split", "Auto", "Auto/split",
          "Auto/mixed", "Flips"])  # fmt: skip
    tell(["---"] * 9)
    off: list[tuple[float, str]] = []
    for load in arguments.loads.split(","):
        for instances in map(int, arguments.instances.split(",")):
            rates = rates_of(arguments, load, instances)
            base = Point(
                *(arguments.profile, load, instances, "", 0, 0.0, arguments.seconds),
                *(arguments.warm_up, None, arguments.seed),
            )
            fixed = [("mixed", chunk) for chunk in chunks]
            fixed += [(one, 0) for one in splits(instances)]
            wanted = [
                base._replace(roles=roles, chunk=chunk, rate=rate)
                for roles, chunk in fixed
                for rate in rates
            ]
            seen = dict(zip(wanted, pool.map(simulated, wanted), strict=True))
            for pair in pairs:
                found = {
                    (roles, chunk): capacity(
                        rates,
                        [
                            seen[base._replace(roles=roles, chunk=chunk, rate=rate)].kept(pair)
                            for rate in rates
                        ],
                    )
                    for roles, chunk in fixed
                }
                off += compared(base, rates, pair, seen, splits(instances))
                row(base, rates, pair, found, pool, arguments)
    told_errors(off)


def row(
    base: Point,
    rates: list[float],
    pair: tuple[float, float],
    found: dict[tuple[str, int], float],
    pool: ProcessPoolExecutor,
    arguments: argparse.Namespace,
) -> None:
    """One pair of promises: the watcher's runs, and the row."""
    best = max(found, key=lambda key: found[key])
    near = [one for one in rates if one <= 1.25 * max(found.values()) + 1e-9]
    near = near[-arguments.near :] or rates[:1]
    autos = [base._replace(roles=AUTO, rate=rate, promised=pair) for rate in near]
    runs = list(pool.map(simulated, autos))
    kept = [one.kept(pair) for one in runs]
    if kept[0] < GOAL:  # capacity is below the rates that were tried near the best one's
        lower = [one for one in rates if one < near[0]]
        autos = [base._replace(roles=AUTO, rate=rate, promised=pair) for rate in lower]
        more = list(pool.map(simulated, autos))
        near, runs = [*lower, *near], [*more, *runs]
        kept = [one.kept(pair) for one in runs]
    auto = capacity(near, kept)
    mixed = max((key for key in found if key[0] == "mixed"), key=lambda key: found[key])
    split = max((key for key in found if key[0] != "mixed"), key=lambda key: found[key])
    ratio = auto / found[best] if found[best] else math.nan
    tell([
        base.load, base.instances, f"{pair[0]:g}/{pair[1]:g}",
        f"{found[mixed]:.1f} ({mixed[1] or 'own'})", f"{found[split]:.1f} ({split[0]})",
        f"{auto:.1f}", f"{ratio:.2f}" + ("" if best == split else " of mixed"),
        f"{auto / found[mixed]:.2f}" if found[mixed] else "-",
        ",".join(str(one.flips) for one in runs),
    ])  # fmt: skip
    if arguments.verbose:
        print("   ", [f"{one:.2f}" for one in near], [f"{one:.3f}" for one in kept], flush=True)


def compared(
    base: Point,
    rates: list[float],
    pair: tuple[float, float],
    seen: dict[Point, Seen],
    choices: list[str],
) -> list[tuple[float, str]]:
    """(forecast - simulated, what) of each choice and rate with the policy's own chunk."""
    told = []
    for roles in ("mixed", *choices):
        split = Split(0, base.instances)
        if roles != "mixed":
            split = Split(*map(int, roles.split(":")))
        for rate in rates:
            point = base._replace(roles=roles, chunk=0, rate=rate)
            if point in seen:
                was = seen[point].kept(pair)
                said = expected(point, pair, split)
                words = f"{base.load} {rate:.1f}/s {pair[0]:g}/{pair[1]:g} {roles}: "
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
    pair = tuple(map(float, arguments.changing.split("/")))
    instances = int(arguments.instances.split(",")[0])
    loads = arguments.mixes.split(",")
    workload = phased(arguments, loads, instances)
    base = Point(
        *(arguments.profile, loads[0], instances, "", 0, workload.rate, 0.0),
        *(arguments.warm_up, None, arguments.seed),
    )
    choices = ["mixed", *splits(instances), AUTO]
    points = [base._replace(roles=one, promised=pair if one == AUTO else None) for one in choices]
    runs = list(pool.map(partial(simulated, workload=promising(workload, pair)), points))
    length = f"{arguments.phase_s:.0f} s each"
    print(f"\n{' then '.join(loads)}, {length}, promises {pair[0]:g}/{pair[1]:g}:")
    for choice, one in zip(choices, runs, strict=True):
        print(f"  {choice:>6}: {one.kept(pair):.3f} kept, {one.flips} flips")


def promising(workload: Workload, pair: tuple[float, ...]) -> Workload:
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


def main() -> None:
    """Print all that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--instances", default="4,8")
    parser.add_argument("--loads", default="sharegpt,hpld,lphd")
    parser.add_argument("--slo", default="0.25/0.03,1/0.03,0.5/0.04,2/0.1", help="TTFT/TPOT, ...")
    parser.add_argument("--chunks", default="128,256,0", help="of mixed; 0: the policy's own, 512")
    parser.add_argument("--seconds", type=float, default=600.0, help="of arrivals, a run")
    parser.add_argument("--warm-up", type=float, default=120.0)
    parser.add_argument("--low", type=float, default=0.1, help="share of what devices could do")
    parser.add_argument("--high", type=float, default=0.9)
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--near", type=int, default=4, help="rates at which the watcher is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--changing", default="1/0.035", help="promises; empty: left out")
    parser.add_argument("--mixes", default="hpld,lphd")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--phase-s", type=float, default=600.0)
    parser.add_argument("--share", type=float, default=0.3, help="of what devices could compute")
    parser.add_argument("--only-changing", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers) as pool:
        if not arguments.only_changing:
            capacities(arguments, pool)
        if arguments.changing:
            changing(arguments, pool)


if __name__ == "__main__":
    main()
