"""A simulated day of changing mixes and rates: the self-driving plan beside every fixed one.

    python -m benchmarks.studies self_driving [--hour-s 600] [--instances 4] [--hours 8]

Each hour (of `--hour-s` simulated seconds) has a mix and a rate of its own. Every fixed choice of a
policy and of roles serves the whole day; the best of them, and for each hour the best one in that
hour (the oracle, who changes nothing for free, but knows the hour before it begins), stand beside a
daemon that begins with the defaults and drives itself. A row for each hour has the share of its
requests that kept both SLOs; goodput is that share times the rate.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.studies import frame
from benchmarks.studies.roles_auto import expected_capacity
from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.pilot import AppliedPlan
from daemon.lab.autoplan.search import SettingsSearch
from daemon.lab.autoplan.settings import LiveSettings, neighbours
from daemon.lab.autoplan.simulated import SimulatedOperator, seen_of
from daemon.lab.planner.candidate import Knobs, scenario_of, unit_of
from daemon.lab.profiles.load import load_profile
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Options, configured, prepare, run
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.state.role import Role
from daemon.state.slo import Slo

DAY = (
    ("lphd", 0.30),
    ("hpld", 0.30),
    ("sharegpt", 0.35),
    ("hpld", 0.36),
    ("lphd", 0.38),
    ("sharegpt", 0.45),
    ("hpld", 0.20),
    ("lphd", 0.20),
)
"""Each hour's mix, and its rate as a share of what the devices could compute."""


class Day(NamedTuple):
    """The circumstances of all runs."""

    profile: str
    instances: int
    hour_s: float
    hours: int
    slo: Slo
    policies: tuple[str, ...]
    seed: int

    @property
    def start(self) -> LiveSettings:
        """The daemon's defaults, without roles by the load."""
        return LiveSettings(policy=self.policies[0], roles=(Role.MIXED,) * self.instances)


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--profile", default="opt-13b@a100-80g")
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--hour-s", type=float, default=600.0)
    parser.add_argument("--hours", type=int, default=len(DAY))
    parser.add_argument("--period-s", type=float, default=0.0, help="0: half an hour of the day")
    parser.add_argument("--slo", default="1/0.035", help="TTFT/TPOT in seconds")
    parser.add_argument("--policies", default="gittins,sarathi")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)


def study(options: argparse.Namespace) -> None:
    """Print the table and what the self-driver did."""
    ttft_s, tpot_s = map(float, options.slo.split("/"))
    day = Day(
        options.profile,
        options.instances,
        options.hour_s,
        options.hours,
        Slo(ttft_s, tpot_s),
        tuple(frame.listed(options.policies)),
        options.seed,
    )
    choices = list(neighbours(day.start, day.policies, may_split=True))
    with ProcessPoolExecutor(options.workers) as pool:
        driven = pool.submit(self_driven, day, options.period_s or day.hour_s / 2)
        fixed = list(pool.map(partial(served, day), choices))
        shares, plans, requests = driven.result()
    table(day, choices, fixed, shares)
    told(plans, requests)


def table(
    day: Day,
    choices: Sequence[LiveSettings],
    fixed: Sequence[Sequence[float]],
    own: Sequence[float],
) -> None:
    """A row for each hour and one for the day."""
    kept = np.array(fixed)
    rates = np.array([rate for _, _, rate in hours_of(day)])
    goodput = kept @ rates / len(rates)
    best = int(goodput.argmax())
    frame.heads("hour", "requests/s", "defaults", f"best fixed: {choices[best].text}", "oracle", "")
    for hour, (mix, _, rate) in enumerate(hours_of(day)):
        column = kept[:, hour]
        oracle = int(column.argmax())
        frame.row((
            f"{hour} {mix}", f"{rate:.1f}", f"{kept[0, hour]:.3f}", f"{column[best]:.3f}",
            f"{column[oracle]:.3f} ({choices[oracle].text})", f"{own[hour]:.3f}",
        ))  # fmt: skip
    oracle_rps = kept.max(axis=0) @ rates / len(rates)
    own_rps = np.array(own) @ rates / len(rates)
    frame.row((
        "goodput/s", f"{rates.mean():.2f}", f"{goodput[0]:.3f}", f"{goodput[best]:.3f}",
        f"{oracle_rps:.3f}", f"{own_rps:.3f}",
    ))  # fmt: skip
    print(
        f"\nself-driving: {own_rps / goodput[0]:.3f} of the defaults, "
        f"{own_rps / goodput[best]:.3f} of the best fixed choice, {own_rps / oracle_rps:.3f} of "
        f"the oracle; worst hour {min(np.array(own) - kept[0]):+.3f} beside the defaults"
    )
    for choice, each in zip(choices, goodput, strict=True):
        print(f"  {choice.text}: {each:.3f}")


def told(plans: Sequence[AppliedPlan], requests: int) -> None:
    """Every plan that was applied."""
    print(f"\n{len(plans)} plans, {requests:,} requests simulated by the searches:")
    for plan in plans:
        print(
            f"  {plan.applied_s:7.0f} s: {plan.before.text} -> {plan.settings.text}: "
            f"{plan.measured_before:.3f} before, {plan.predicted:.3f} predicted, "
            f"{plan.measured:.3f} measured, {plan.state}"
        )


def hours_of(day: Day) -> list[tuple[str, float, float]]:
    """(mix, share, requests a second) of each hour."""
    return [
        (mix, share, share * expected_capacity(day.profile, mix, day.instances))
        for mix, share in DAY[: day.hours]
    ]


def workload_of(day: Day) -> Workload:
    """All requests of the day."""
    parts = []
    for hour, (mix, _, rate) in enumerate(hours_of(day)):
        count = int(rate * day.hour_s)
        spec = WorkloadSpec(name=mix, requests=count, rate=rate, seed=day.seed + hour)
        one = build(spec, load_profile(day.profile).model.context_len)
        parts.append((one, one.arrival_s[one.arrival_s < day.hour_s] + hour * day.hour_s))
    times_s = np.concatenate([times for _, times in parts])
    return Workload(
        label=f"a day of {day.hours} hours",
        arrival_s=times_s,
        prompt_tokens=np.concatenate([one.prompt_tokens[: t.size] for one, t in parts]),
        output_tokens=np.concatenate([one.output_tokens[: t.size] for one, t in parts]),
        slo_class=np.zeros(times_s.size, np.uint8),
        classes=(SloClass(ttft_s=day.slo.ttft_s, tpot_s=day.slo.tpot_s),),
    )


def scenario(day: Day, settings: LiveSettings) -> Scenario:
    """The scenario of settings, for the day's SLOs."""
    classes = (SloClass(ttft_s=day.slo.ttft_s, tpot_s=day.slo.tpot_s),)
    base = Scenario(
        workload=WorkloadSpec(name="sharegpt", rate=1.0, classes=classes),
        instance=(),
        predictor="mean",
        seed=day.seed,
    )
    return scenario_of(base, settings.candidate(unit_of(day.profile)))


def by_hour(day: Day, log: RunLog) -> list[float]:
    """The share of each hour's requests that kept both SLOs."""
    seen = seen_of(log.requests, day.slo, np.inf)
    return [
        float(seen.between(hour * day.hour_s, (hour + 1) * day.hour_s).kept.mean())
        for hour in range(day.hours)
    ]


def served(day: Day, settings: LiveSettings) -> list[float]:
    """The day under fixed settings."""
    return by_hour(day, run(prepare(scenario(day, settings), workload_of(day))))


def self_driven(day: Day, period_s: float) -> tuple[list[float], list[AppliedPlan], int]:
    """The day of a daemon that drives itself, its plans, and the requests that its searches
    simulated.
    """
    prepared = prepare(scenario(day, day.start), workload_of(day))
    names = [instance.name for instance in configured(prepared).instances]
    with TemporaryDirectory() as folder:
        search = SettingsSearch(unit_of(day.profile), Knobs(), day.slo, Path(folder))
        driver = SelfDriver(day.start, names, day.policies, search, period_s)
        operator = SimulatedOperator(driver, names, day.slo)
        log = run(prepared, Options(operator=operator))
        return by_hour(day, log), operator.plans, search.requests
