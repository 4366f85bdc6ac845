"""What a scenario's types cannot say: ranges, names, and what its profiles must know."""

import math
from collections.abc import Iterator, Sequence

from daemon.cost.profile import Profile
from daemon.lab.simulator.links import transfer_s
from daemon.lab.simulator.power import check_cap
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioError
from daemon.memory.swap_space import SWAP_MODES
from daemon.nearest import not_one_of
from daemon.predict.lengths import length_predictor
from daemon.scheduler.policies import POLICIES

MOST_SIGMA = 4.0
"""An error of e^4 either way says nothing; those of much more are no numbers."""

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
    """Refuse what cannot run. Raises ScenarioError, and PredictorError for an unknown predictor."""
    for fault in (*_choices(scenario), *_limits(scenario), *_instances(scenario)):
        raise ScenarioError(fault)
    length_predictor(scenario.predictor)
    kind, _, sigma = scenario.predictor.partition(":")
    if kind == "noisy" and float(sigma) > MOST_SIGMA:
        raise ScenarioError(f"predictor: noisy:SIGMA must be at most {MOST_SIGMA:g}, got {sigma}")


def check_profiles(
    scenario: Scenario, groups: Sequence[InstanceGroup], profiles: Sequence[Profile]
) -> None:
    """Refuse what the instances' profiles cannot tell. Raises ScenarioError."""
    for profile, group in zip(profiles, groups, strict=True):
        check_cap(profile, group.power_cap)
    for fault in scenario.fault:
        reload_s(profiles[fault.instance])


def reload_s(profile: Profile) -> float:
    """How long its weights take over the host link. Raises ScenarioError where nobody knows."""
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
    if scenario.seed < 0:
        yield f"seed must be at least 0, got {scenario.seed}"


def _limits(scenario: Scenario) -> Iterator[str]:
    limits = scenario.limits
    for name, least in _AT_LEAST.items():
        value = getattr(limits, name)
        if value < least:
            yield f"limits.{name} must be at least {least}, got {value}"
    if not 0.0 < limits.starve_s < math.inf:
        yield f"limits.starve_s must be a number above 0, got {limits.starve_s}"
    if limits.swap not in ("", *SWAP_MODES):
        yield f"limits.swap {not_one_of(limits.swap, SWAP_MODES)}"


def _instances(scenario: Scenario) -> Iterator[str]:
    for group in scenario.instance:
        if group.count < 1:
            yield f"instance.count must be at least 1, got {group.count}"
        if not 0.0 < group.power_cap <= 1.0:
            yield f"instance.power_cap must be above 0 and at most 1, got {group.power_cap}"
        for name in ("kv_bytes", "host_bytes"):
            value = getattr(group, name)
            if not 0.0 <= value < math.inf:
                yield f"instance.{name} must be a number from 0 on, got {value}"
        if group.role != "mixed":
            yield f"instance.role {group.role!r}: only mixed instances exist so far"
    for fault in scenario.fault:
        if not 0 <= fault.instance < scenario.num_instances:
            yield f"fault.instance {fault.instance}: there is no such instance"
        for name in ("at_s", "restart_s"):
            value = getattr(fault, name)
            if not 0.0 <= value < math.inf:
                yield f"fault.{name} must be a number from 0 on, got {value}"
