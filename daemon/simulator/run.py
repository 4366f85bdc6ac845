"""From a scenario to its run: profiles, pools, workers and the workload, put together."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemon.core.core import Core
from daemon.core.events import Configured, InstanceConfig
from daemon.cost.profile import Profile
from daemon.journal.writer import JournalWriter
from daemon.memory.swap_space import SWAP_MODES
from daemon.predict.lengths import length_predictor
from daemon.predict.prediction import Predictor
from daemon.profiles.load import load_profile
from daemon.report.records import RunLog
from daemon.scheduler.policies import POLICIES
from daemon.simulator.links import Link
from daemon.simulator.pool import pools_of
from daemon.simulator.recorder import Recorder
from daemon.simulator.scenario import InstanceGroup, Scenario, ScenarioError
from daemon.simulator.simulator import Extras, Machine, Progress, Simulator
from daemon.simulator.traffic import Traffic, traffic_of
from daemon.simulator.workers import simulated_workers
from daemon.workload.build import build
from daemon.workload.workload import Workload

_NO_BOUND = 1 << 40


@dataclass(frozen=True)
class Options:
    """What a run leaves besides its log, and who is told of its progress."""

    journal: Path | None = None  # a folder
    spans: bool = False  # every step, for the trace viewer
    progress: Progress | None = None
    after_event: Callable[[Core], None] | None = None
    predictor: Predictor | None = None  # instead of the one that the scenario names


@dataclass(frozen=True)
class Prepared:
    """A scenario with its profiles read and its workload built: ready to run, many times."""

    scenario: Scenario
    profiles: tuple[Profile, ...]  # one for each instance
    groups: tuple[InstanceGroup, ...]  # likewise
    max_len: int
    workload: Workload


def prepare(scenario: Scenario, workload: Workload | None = None) -> Prepared:
    """Read and build what a scenario names. Raises ScenarioError, ProfileError, WorkloadError."""
    _check(scenario)
    groups = tuple(group for group in scenario.instance for _ in range(group.count))
    known = {group.profile: load_profile(group.profile) for group in scenario.instance}
    profiles = tuple(known[group.profile] for group in groups)
    context = min(profile.model.context_len for profile in profiles)
    max_len = min(scenario.limits.max_len or context, context)
    if scenario.fault and not profiles[0].device.host_link.bytes_per_s:
        raise ScenarioError(f"fault: {profiles[0].name} has no host link to load weights over")
    return Prepared(
        scenario, profiles, groups, max_len, workload or build(scenario.workload, max_len)
    )


def run(prepared: Prepared, options: Options | None = None) -> RunLog:
    """Simulate it. Raises ScenarioError, SimulationError."""
    options = options or Options()
    scenario = prepared.scenario
    config = configured(prepared)
    edges = prepared.profiles[0].edges
    traffic = traffic_of(
        prepared.workload,
        prepared.max_len,
        scenario.limits.block_size,
        edges.request_s,
        scenario.limits.exact_max_tokens,
    )
    names = [instance.name for instance in config.instances]
    recorder = Recorder(traffic.log(), list(prepared.profiles), names)
    recorder.spans = [] if options.spans else None
    journal = JournalWriter(options.journal, _NO_BOUND, config) if options.journal else None
    streams = np.random.SeedSequence(scenario.seed).spawn(1 + len(names))
    chances = [np.random.default_rng(stream) for stream in streams]
    extras = Extras(
        predictor=options.predictor or length_predictor(scenario.predictor),
        chance=chances[0],
        journal=journal,
        faults=scenario.fault,
        progress=options.progress,
        after_event=options.after_event,
    )
    machine = _machine(prepared, config, traffic, chances[1:])
    return Simulator(config, traffic, machine, recorder, extras).run()


def configured(prepared: Prepared) -> Configured:
    """The Core's configuration."""
    scenario = prepared.scenario
    limits = scenario.limits
    max_batch_tokens = POLICIES[scenario.policy].budget(limits.max_batch_tokens)
    instances = tuple(
        InstanceConfig(f"{index}:{profile.name}", group.role, profile.device.name, profile.pp)
        for index, (profile, group) in enumerate(
            zip(prepared.profiles, prepared.groups, strict=True)
        )
    )
    return Configured(
        now=0.0,
        instances=instances,
        policy=scenario.policy,
        block_size=limits.block_size,
        max_running=limits.max_running,
        max_batch_tokens=max_batch_tokens,
        prefill_chunk=min(limits.prefill_chunk or max_batch_tokens, max_batch_tokens),
        max_waiting=limits.max_waiting or _NO_BOUND,
        max_len=prepared.max_len,
        prefix_cache=limits.prefix_cache,
        depth=limits.depth,
        swap=limits.swap,
        starve_s=limits.starve_s,
    )


def _machine(
    prepared: Prepared, config: Configured, traffic: Traffic, chances: list[np.random.Generator]
) -> Machine:
    profiles, groups = prepared.profiles, prepared.groups
    caps = [group.power_cap for group in groups]
    pools = [
        pools_of(profile, group, config) for profile, group in zip(profiles, groups, strict=True)
    ]
    noisy = prepared.scenario.noise
    workers = simulated_workers(
        profiles, caps, traffic.stops_at, config.max_running, chances, pools, noisy
    )
    weights = [one.model.weight_bytes(one.model.dtype) for one in profiles]
    host = Link(profiles[0].device.host_link, "host link")
    return Machine(list(workers), pools, weights, host, profiles[0].edges.delivery_s)


def _check(scenario: Scenario) -> None:
    if not scenario.instance:
        raise ScenarioError("a scenario needs at least one [[instance]] with a profile")
    if scenario.policy not in POLICIES:
        raise ScenarioError(f"policy must be one of {', '.join(POLICIES)}, got {scenario.policy!r}")
    if scenario.limits.swap not in ("", *SWAP_MODES):
        raise ScenarioError(
            f"limits.swap must be one of {', '.join(SWAP_MODES)}, got {scenario.limits.swap!r}"
        )
    for group in scenario.instance:
        if group.count < 1:
            raise ScenarioError(f"instance.count must be at least 1, got {group.count}")
        if not 0.0 < group.power_cap <= 1.0:
            raise ScenarioError(
                f"instance.power_cap must be above 0 and at most 1, got {group.power_cap}"
            )
        if group.role != "mixed":
            raise ScenarioError(f"instance.role {group.role!r}: only mixed instances exist so far")
    for fault in scenario.fault:
        if not 0 <= fault.instance < scenario.num_instances:
            raise ScenarioError(f"fault.instance {fault.instance}: there is no such instance")
