"""From a scenario to its run: profiles, pools, workers and the workload, put together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from daemon.core.core import Core
from daemon.core.values.events import POLICY_NAMES, Configured, InstanceConfig
from daemon.core.values.limits import (
    largest_step,
    limits_of,
    says_budget,
    says_chunk,
)
from daemon.cost.forward_size import size_of
from daemon.cost.profile import Profile
from daemon.cost.step_cost import chosen, cost_of
from daemon.journal.writer import JournalWriter
from daemon.lab.profiles.load import load_profile
from daemon.lab.report.records import RunLog, Span
from daemon.lab.simulator.checks import check, check_profiles, reload_s
from daemon.lab.simulator.drafts import Drafts, stated
from daemon.lab.simulator.operators import Operator
from daemon.lab.simulator.pool import Pool, pools_of
from daemon.lab.simulator.recorder import Recorder
from daemon.lab.simulator.routes import Routes
from daemon.lab.simulator.scenario import InstanceGroup, Scenario
from daemon.lab.simulator.simulator import Extras, Machine, Progress, Simulator
from daemon.lab.simulator.traffic import Traffic, traffic_of
from daemon.lab.simulator.workers import chances, simulated_workers
from daemon.lab.workload.build import build
from daemon.lab.workload.workload import Workload
from daemon.length_models.prediction import Predictor
from daemon.length_models.registry import predictor_without_text
from daemon.scheduler.policies import POLICIES
from daemon.state.role import WATCHED, Role

_NO_BOUND = 1 << 40


@dataclass(frozen=True)
class Options:
    """A run's results besides its log, and its observers."""

    journal: Path | None = None  # a folder
    spans: bool = False  # every step, for the trace viewer
    operators: bool = False  # the input and the time of each one
    energy: bool = False  # over time, of each instance
    progress: Progress | None = None
    after_event: Callable[[Core], None] | None = None
    predictor: Predictor | None = None  # instead of the one that the scenario names
    operator: Operator | None = None  # who gives orders meanwhile


@dataclass(frozen=True)
class Prepared:
    """A scenario with its profiles read and its workload built: ready to run, repeatedly."""

    scenario: Scenario
    profiles: tuple[Profile, ...]  # one for each instance
    groups: tuple[InstanceGroup, ...]  # likewise
    max_len: int
    workload: Workload


def prepare(scenario: Scenario, workload: Workload | None = None) -> Prepared:
    """Read and build the parts of a scenario. Raises ScenarioError, ProfileError, WorkloadError."""
    check(scenario)
    each = (group for group in scenario.instance for _ in range(group.count))
    groups = tuple(
        msgspec.structs.replace(group, role=role)
        for group, role in zip(each, scenario.role_of_each, strict=True)
    )
    known = {name: load_profile(name) for name in {group.profile_name for group in groups}}
    profiles = tuple(
        chosen(_with_link(known[group.profile_name], group), scenario.step_times)
        for group in groups
    )
    check_profiles(scenario, groups, profiles)
    context = min(profile.model.context_len for profile in profiles)
    pools = pools_for(scenario, profiles, groups)
    largest = max(pool.num_blocks for pool in pools) * scenario.limits.block_size
    # As the daemon does: a request that no instance could ever hold is not admitted.
    max_len = min(scenario.limits.max_len or context, context, largest)
    return Prepared(
        scenario, profiles, groups, max_len, workload or build(scenario.workload, max_len)
    )


def _with_link(profile: Profile, group: InstanceGroup) -> Profile:
    """The profile, with the group's own speed of the host link where it has one."""
    if not group.link_bytes_per_s:
        return profile
    device_bytes_per_s = group.link_bytes_per_s / profile.num_devices
    link = msgspec.structs.replace(profile.device.host_link, bytes_per_s=device_bytes_per_s)
    device = msgspec.structs.replace(profile.device, host_link=link)
    return msgspec.structs.replace(profile, device=device)


def run(prepared: Prepared, options: Options | None = None) -> RunLog:
    """Simulate it. Raises SimulationError."""
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
        scenario.n,
        scenario.workload.seed,
        named=bool(config.roles)
        or any(instance.role is not Role.MIXED for instance in config.instances),
    )
    names = [instance.name for instance in config.instances]
    recorder = Recorder(traffic.log(), prepared.profiles, config.instances, traffic.n)
    recorder.spans = [] if options.spans else None
    if options.operators:
        costs = {profile: cost_of(profile) for profile in dict.fromkeys(prepared.profiles)}
        recorder.costs = [costs[profile] for profile in prepared.profiles]
    chance, *noises = chances(scenario.seed, 1 + len(names))
    drafts = stated(scenario.drafts, scenario.workload.seed)
    extras = Extras(
        predictor=options.predictor or predictor_without_text(scenario.predictor),
        chance=chance,
        journal=journal_of(options, config),
        faults=scenario.fault,
        progress=options.progress,
        after_event=options.after_event,
        drafts=drafts,
        operator=options.operator,
    )
    machine = _machine(prepared, config, traffic, noises, recorder.spans, drafts)
    recorder.workers = machine.workers if options.energy else None
    return Simulator(config, traffic, machine, recorder, extras).run()


def journal_of(options: Options, config: Configured) -> JournalWriter | None:
    """The writer of a run's events, if any: one file, however long it grows."""
    return JournalWriter(options.journal, _NO_BOUND, config) if options.journal else None


def configured(prepared: Prepared) -> Configured:
    """The Core's configuration."""
    scenario = prepared.scenario
    limits, written = scenario.limits, scenario.shared_limits
    shared = limits_of(written, written)
    instances = tuple(
        InstanceConfig(
            f"{index}:{profile.name}",
            Role(group.role),
            profile.device.name,
            profile.pp,
            ahead=not profile.device.is_cpu,  # as the daemon does
            **asdict(limits_of(group, written)),
            chunk_is_own=not says_chunk(group, written),
            budget_is_own=not says_budget(group, written),
            wakes_in_s=(group.wake_s or reload_s(profile)) if group.asleep else 0.0,
        )
        for index, (profile, group) in enumerate(
            zip(prepared.profiles, prepared.groups, strict=True)
        )
    )
    return Configured(
        now=0.0,
        instances=instances,
        policy=shared.policy,
        block_size=limits.block_size,
        max_running=shared.max_running,
        max_batch_tokens=shared.max_batch_tokens,
        prefill_chunk=shared.prefill_chunk,
        max_waiting=limits.max_waiting or _NO_BOUND,
        max_len=prepared.max_len,
        prefix_cache=limits.prefix_cache,
        depth=shared.depth,
        swap=shared.swap,
        starve_s=limits.starve_s,
        placement=scenario.placement,
        max_pause_s=scenario.max_pause_s,
        handoff=scenario.handoff.mode,
        decode_admission=shared.decode_admission,
        slo_ttft_s=scenario.slo.ttft_s,
        slo_tpot_s=scenario.slo.tpot_s,
        roles=scenario.watched,
        policy_names=POLICY_NAMES,
        pair=scenario.handoff.pair,
        mixed_pool=scenario.handoff.mixed_pool,
    )


def pools_for(
    scenario: Scenario, profiles: Sequence[Profile], groups: Sequence[InstanceGroup]
) -> list[Pool]:
    """The pools of one instance of each group."""
    block_size, shared = scenario.limits.block_size, scenario.shared_limits
    pools = []
    for profile, group in zip(profiles, groups, strict=True):
        limits = limits_of(group, shared)
        may_prefill = scenario.num_instances > 1 and (
            bool(scenario.watched) or group.role == Role.PREFILL
        )
        is_open = not says_budget(group, shared) and not profile.device.is_cpu
        limits = replace(limits, max_batch_tokens=largest_step(limits, may_prefill, is_open))
        pools.append(pools_of(profile, group, block_size, limits, scenario.limits.compress))
    return pools


def forward_tokens(config: Configured, profiles: Sequence[Profile]) -> list[int]:
    """The target forward size of each instance, by its profile; 0 where its policy does
    not use it.
    """
    return [_size(config, *pair) for pair in zip(config.instances, profiles, strict=True)]


def _size(config: Configured, instance: InstanceConfig, profile: Profile) -> int:
    own = limits_of(instance, config)
    if POLICIES[own.policy].fills_device:
        return size_of(profile).within(own.max_batch_tokens)
    may_prefill = len(config.instances) > 1 and (
        config.roles in WATCHED or instance.role is Role.PREFILL
    )
    is_open = instance.budget_is_own and not profile.device.is_cpu  # as in the daemon
    largest = largest_step(own, may_prefill, is_open)
    return size_of(profile).within(largest) if largest > own.max_batch_tokens else 0


def _machine(
    prepared: Prepared,
    config: Configured,
    traffic: Traffic,
    noises: Sequence[np.random.Generator],
    spans: list[Span] | None,
    drafts: Drafts | None = None,
) -> Machine:
    scenario, profiles, groups = prepared.scenario, prepared.profiles, prepared.groups
    pools = pools_for(scenario, profiles, groups)
    names = [instance.name for instance in config.instances]
    workers = simulated_workers(
        names,
        profiles,
        [group.power_cap for group in groups],
        pools,
        traffic.stops_at,
        [instance.max_running for instance in config.instances],
        noises,
        scenario.noise,
        spans,
        drafts,
    )
    return Machine(
        workers,
        pools,
        ready_s=[0.0] * len(workers),
        reload_s=[reload_s(profile) for profile in profiles] if scenario.fault else (),
        delivery_s=profiles[0].edges.delivery_s,
        routes=Routes(names, profiles, pools, config.block_size, scenario.handoff),
        forward_tokens=forward_tokens(config, profiles),
    )
