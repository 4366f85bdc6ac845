"""Checks of a scenario beyond its types: ranges, names, and its profiles' knowledge."""

import math
from collections.abc import Iterator, Sequence

from daemon.base.nearest import not_one_of
from daemon.config.instance_text import device_fault, parallel_fault, role_fault, split_devices
from daemon.config.instances import OWN_CHOICES, OWN_COUNTS
from daemon.cost.profile import Profile
from daemon.cost.step_cost import OPERATORS, STEP_TIMES
from daemon.lab.simulator.links import transfer_s
from daemon.lab.simulator.power import check_cap
from daemon.lab.simulator.scenario import HandoffSpec, InstanceGroup, Scenario, ScenarioError
from daemon.length_models.registry import predictor_without_text
from daemon.memory.swap_space import SWAP_MODES
from daemon.placement import NAMES, PLACEMENTS
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.policies import POLICIES
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST
from daemon.state.role import IDLE, ROLES_MODES, TRANSITIONS
from daemon.state.transfer_mode import HANDOFF_MODES, PAIRINGS

MOST_SIGMA = 4.0
"""Largest error of a predictor, in logarithms: e^4 either way is meaningless already."""

_AT_LEAST = {
    "max_running": 1,
    "max_batch_tokens": 0,
    "prefill_chunk": 0,
    "max_waiting": 0,
    "max_len": 0,
    "block_size": 1,
    "depth": 0,
}


def check(scenario: Scenario) -> None:
    """Refuse a scenario that cannot run. Raises ScenarioError, and PredictorError for an unknown
    predictor.
    """
    for fault in (
        *_choices(scenario),
        *_limits(scenario),
        *_handoff(scenario.handoff),
        *_instances(scenario),
        *_roles(scenario),
    ):
        raise ScenarioError(fault)
    predictor_without_text(scenario.predictor)
    kind, _, sigma = scenario.predictor.partition(":")
    if kind == "noisy" and float(sigma) > MOST_SIGMA:
        raise ScenarioError(f"predictor: noisy:SIGMA must be at most {MOST_SIGMA:g}, got {sigma}")


def check_profiles(
    scenario: Scenario, groups: Sequence[InstanceGroup], profiles: Sequence[Profile]
) -> None:
    """Refuse a scenario that needs more than its profiles know. Raises ScenarioError."""
    for profile, group in zip(profiles, groups, strict=True):
        check_cap(profile, group.power_cap)
        _check_devices(profile, group.device)
        if scenario.step_times == OPERATORS and profile.operators is None:
            raise ScenarioError(f"step_times: {profile.name} has no operators measured alone")
    for fault in scenario.fault:
        reload_s(profiles[fault.instance])


def _check_devices(profile: Profile, device: str) -> None:
    """Refuse devices that are not the profile's."""
    there = "cpu" if profile.device.is_cpu else f"{profile.num_devices} x {profile.device.name}"
    fits = (device == "cpu") == profile.device.is_cpu
    if device and not (fits and len(split_devices(device)) == profile.num_devices):
        raise ScenarioError(f"instance.device {device!r}: {profile.name} is of {there}")


def reload_s(profile: Profile) -> float:
    """The time to load the weights over the host link. Raises ScenarioError where it is unknown."""
    size_bytes = profile.model.weight_bytes(profile.model.dtype)
    try:
        return transfer_s(profile.device.host_link, size_bytes, f"{profile.name} host link")
    except ValueError as error:
        raise ScenarioError(f"fault: {error}") from None


def _choices(scenario: Scenario) -> Iterator[str]:
    if not scenario.instance:
        yield "a scenario needs at least one [[instance]] with a profile"
    if scenario.policy not in POLICIES:
        yield f"policy {not_one_of(scenario.policy, POLICIES)}"
    if scenario.placement not in NAMES:
        yield f"placement {not_one_of(scenario.placement, PLACEMENTS)}"
    if not 1 <= scenario.n <= MAX_SEQUENCES_PER_REQUEST:
        yield f"n must be from 1 to {MAX_SEQUENCES_PER_REQUEST}, got {scenario.n}"
    if scenario.step_times and scenario.step_times not in STEP_TIMES:
        yield f"step_times {not_one_of(scenario.step_times, STEP_TIMES)}"
    if scenario.seed < 0:
        yield f"seed must be at least 0, got {scenario.seed}"


def _limits(scenario: Scenario) -> Iterator[str]:
    limits = scenario.limits
    for name, least in _AT_LEAST.items():
        value = getattr(limits, name)
        if value < least:
            yield f"limits.{name} must be at least {least}, got {value}"
    for name in ("starve_s", "max_pause_s"):
        value = getattr(limits, name)
        if value is not None and not 0.0 < value < math.inf:
            yield f"limits.{name} must be a number above 0, got {value}"
    if limits.swap not in ("", *SWAP_MODES):
        yield f"limits.swap {not_one_of(limits.swap, SWAP_MODES)}"
    if limits.decode_admission not in DECODE_ADMISSIONS:
        yield f"limits.decode_admission {not_one_of(limits.decode_admission, DECODE_ADMISSIONS)}"


def _handoff(spec: HandoffSpec) -> Iterator[str]:
    for name in ("bytes_per_s", "latency_s", "layer_sync_s"):
        value = getattr(spec, name)
        if value is not None and not 0.0 <= value < math.inf:
            yield f"handoff.{name} must be a number from 0 on, got {value}"
    if spec.mode not in HANDOFF_MODES:
        yield f"handoff.mode {not_one_of(spec.mode, HANDOFF_MODES)}"
    if spec.pair not in PAIRINGS:
        yield f"handoff.pair {not_one_of(spec.pair, PAIRINGS)}"


def _roles(scenario: Scenario) -> Iterator[str]:
    """The faults of `roles`: a split covers all instances, with at least one of each role."""
    roles = scenario.roles
    if roles in ("", *ROLES_MODES):
        return
    parts = roles.split(":")
    if len(parts) == 3 and parts[2] in TRANSITIONS:
        del parts[2]
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        known = ", ".join(ROLES_MODES)
        yield f"roles must be {known}, P:D such as 2:6 or P:D:{IDLE}, got {roles!r}"
        return
    num_prefill, num_decode = (int(part[:9]) for part in parts)
    if not num_prefill or not num_decode:
        yield f"roles {roles!r}: there must be an instance for prompts and one for answers"
    elif num_prefill + num_decode != scenario.num_instances:
        yield f"roles {roles!r}: there are {scenario.num_instances} instances"


def _instances(scenario: Scenario) -> Iterator[str]:
    for group in scenario.instance:
        if group.count < 1:
            yield f"instance.count must be at least 1, got {group.count}"
        if not 0.0 < group.power_cap <= 1.0:
            yield f"instance.power_cap must be above 0 and at most 1, got {group.power_cap}"
        for name in ("kv_bytes", "host_bytes", "link_bytes_per_s", "wake_s"):
            value = getattr(group, name)
            if not 0.0 <= value < math.inf:
                yield f"instance.{name} must be a number from 0 on, got {value}"
        if wrong := role_fault(group.role):
            yield f"instance.role {wrong}"
        if group.device and (
            wrong := device_fault(group.device) or parallel_fault(group.device, group.parallel)
        ):
            yield f"instance.device {wrong}"
        for name in OWN_COUNTS:
            if getattr(group, name) < 0:
                yield f"instance.{name} must be at least 0, got {getattr(group, name)}"
        for name, choices in OWN_CHOICES.items():
            if getattr(group, name) not in ("", *choices):
                yield f"instance.{name} {not_one_of(getattr(group, name), choices)}"
    if scenario.instance and scenario.instance[0].asleep:
        yield "instance.asleep: the first instance has to be awake"
    for fault in scenario.fault:
        if not 0 <= fault.instance < scenario.num_instances:
            yield f"fault.instance {fault.instance}: there is no such instance"
        for name in ("at_s", "restart_s"):
            value = getattr(fault, name)
            if not 0.0 <= value < math.inf:
                yield f"fault.{name} must be a number from 0 on, got {value}"
