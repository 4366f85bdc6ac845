"""The flags of `llmd simulate` that make a scenario, alone or over a file."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daemon.cli.argument_parser import add_flags, offer
from daemon.cli.defaults import PLACEMENTS_BELOW, POLICIES_BELOW, of_default
from daemon.cli.instance_flag import add_instance_flag
from daemon.cli.workload_flags import workload_spec
from daemon.config.schema import SchedulerConfig
from daemon.cost.step_cost import STEP_TIMES
from daemon.lab.profiles.load import names
from daemon.lab.simulator.scenario import (
    PAUSE_SHARE,
    HandoffSpec,
    InstanceGroup,
    Scenario,
    ScenarioError,
    ScenarioLimits,
)
from daemon.lab.simulator.scenario_file import read_scenario
from daemon.length_models.registry import CHOICES, KINDS
from daemon.memory.swap_space import SWAP_MODES
from daemon.placement import PLACEMENTS
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.policies import POLICIES
from daemon.state.role import ROLES_MODES
from daemon.state.transfer_mode import HANDOFF_MODES, PAIRINGS

_LIMITS: tuple[tuple[str, int, str, str], ...] = (
    ("max-running", 1, "sequences in a batch", ""),
    ("max-batch-tokens", 0, "token budget of a step", "the policy's own"),
    ("prefill-chunk", 0, "prompt tokens of a sequence in a step", "as the budget"),
    (
        "max-waiting",
        0,
        "sequences that may queue before requests are rejected",
        "no bound, unlike a daemon",
    ),
    ("max-len", 0, "tokens of the longest sequence", "the model's context"),
    ("block-size", 1, "tokens of a KV block", ""),
    ("depth", 0, "steps in flight", "chosen from the step time"),
)
"""Each flag, its least value, its meaning and what 0 stands for."""


def add_scenario_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, in groups of their own."""
    parser.add_argument(
        "scenario", nargs="?", type=Path, metavar="SCENARIO.toml", help="flags override its values"
    )
    group = parser.add_argument_group("instances")
    profile = group.add_argument(
        "--profile", metavar="NAME|FILE", help="model and device, such as opt-13b@a100-80g"
    )
    offer(profile, names())
    for name, kind, metavar, what in (
        ("instances", int, "N", f"how many of them {_default(InstanceGroup, 'count')}"),
        ("kv-bytes", float, "B", "KV memory of each (default: the memory formula's)"),
        (
            *("host-bytes", float, "B"),
            f"host memory of each to swap KV to {_default(InstanceGroup, 'host_bytes')}",
        ),
        (
            *("link-bytes-per-s", float, "B"),
            "bytes a second between each one's devices and host memory, either way (default: the "
            "profile's)",
        ),
        (
            *("power-cap", float, "X"),
            f"share of the devices' power limit {_default(InstanceGroup, 'power_cap')}",
        ),
    ):
        group.add_argument(f"--{name}", type=kind, metavar=metavar, help=what)
    add_instance_flag(group, "each of them by its devices")
    _add_handoff(group)
    group.add_argument(
        "--n",
        type=_from(1),
        metavar="N",
        help=f"answers of each request, each with a row of its own {_default(Scenario, 'n')}",
    )
    group.add_argument(
        "--step-times",
        choices=STEP_TIMES,
        help="step times from a fit to whole steps, or the sum of operators measured alone "
        "(default: whichever errs less, where the profile has both)",
    )
    group.add_argument(
        "--drafts",
        metavar="S:L",
        help="share of answers' tokens in quotes, and mean tokens of a quote: prompt lookup drafts "
        "them, on a CPU (default: none)",
    )
    _add_scheduling(parser)


def _add_handoff(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--handoff",
        choices=HANDOFF_MODES,
        help="when a prompt's KV is transferred: once it is computed, layer by layer meanwhile, or "
        f"whichever is sooner {_default(HandoffSpec, 'mode')}",
    )
    group.add_argument(
        "--pair",
        choices=PAIRINGS,
        help="when an answer's instance is chosen: at its prompt's last chunk, or as it arrives "
        f"{_default(HandoffSpec, 'pair')}",
    )
    group.add_argument(
        "--mixed-pool",
        action="store_true",
        default=None,
        help="work that finds no room in its pool goes to instances of the other role, which are "
        "in the mixed pool meanwhile",
    )


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling, by default as in a daemon")
    policy = group.add_argument(
        "--policy", metavar="P", help=f"one of those below {_default(Scenario, 'policy')}"
    )
    offer(policy, tuple(POLICIES))
    placement = group.add_argument(
        "--placement",
        metavar="P",
        help=f"which instance takes a sequence {_default(Scenario, 'placement')}",
    )
    offer(placement, tuple(PLACEMENTS))
    roles = group.add_argument(
        "--roles",
        metavar="R",
        help="of the instances: auto, low_load, idle (by the load, as a daemon), mixed (all), P:D "
        "such as 2:6 (2 for prefill, 6 for decode), or P:D:idle, where idle ones change later "
        "(default: as each [[instance]] says)",
    )
    offer(roles, ROLES_MODES)
    predictor = group.add_argument(
        "--predictor", metavar="P", help=f"{CHOICES} {_default(Scenario, 'predictor')}"
    )
    offer(predictor, KINDS)
    group.add_argument(
        "--swap",
        choices=SWAP_MODES,
        help="KV of preempted sequences: copied ahead of need, copied at need, computed again, or "
        "newcomers preempt none (default: the policy's own)",
    )
    group.add_argument(
        "--compress",
        action="store_true",
        default=None,
        help="KV in host memory is packed into 8 bits: the link and the host pool carry half",
    )
    group.add_argument(
        "--decode-admission",
        choices=DECODE_ADMISSIONS,
        help="what a newcomer needs room for: its present tokens, all that is predicted for it and "
        "for running sequences, or what they hold when the first of them ends "
        f"{_default(ScenarioLimits, 'decode_admission')}",
    )
    _add_limits(group)
    parser.epilog = f"{POLICIES_BELOW}\n{PLACEMENTS_BELOW}"


def _add_limits(group: argparse._ArgumentGroup) -> None:
    wait = (
        "wait before a sequence rises (mlfq, speculative-queues) "
        f"{_default(ScenarioLimits, 'starve_s')}"
    )
    pause = (
        "longest pause of a stream that has begun, under gittins (default: "
        f"{PAUSE_SHARE:g} of the shortest SLO for gaps, such as --slo-gap; without one "
        f"{SchedulerConfig().max_pause_s:g})"
    )
    add_flags(
        group,
        ("--starve-s", float, None, "S", wait),
        ("--max-pause-s", float, None, "S", pause),
    )
    for name, least, what, otherwise in _LIMITS:
        default = _default(ScenarioLimits, name.replace("-", "_"), otherwise)
        group.add_argument(f"--{name}", type=_from(least), metavar="N", help=f"{what} {default}")
    group.add_argument(
        "--no-noise", action="store_true", help="step times exactly as the profile's fit says"
    )


def _default(kind: type[msgspec.Struct], name: str, otherwise: str = "") -> str:
    """The default of a scenario's field, for its flag's help."""
    fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return of_default(fields[name], otherwise)


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """The scenario of file and flags together. Raises ScenarioError, WorkloadError."""
    if arguments.scenario is None:
        if not arguments.profile:
            raise ScenarioError("on what? give --profile NAME, or a scenario file")
        workload = workload_spec(arguments)
        base = Scenario(workload=workload, instance=(InstanceGroup(profile=arguments.profile),))
    else:
        base = read_scenario(arguments.scenario)
        workload = workload_spec(arguments, base.workload)
    changes: dict[str, Any] = {
        "instance": _instances(arguments, base),
        "limits": _limits(arguments, base.limits),
        "workload": workload,
        "noise": base.noise and not arguments.no_noise,
    }
    for name in ("n", "policy", "placement", "roles", "predictor", "seed", "drafts", "step_times"):
        if getattr(arguments, name) is not None:
            changes[name] = getattr(arguments, name)
    handoff = {
        name: value
        for name, value in (
            ("mode", arguments.handoff),
            ("pair", arguments.pair),
            ("mixed_pool", arguments.mixed_pool),
        )
        if value is not None
    }
    changes["handoff"] = msgspec.structs.replace(base.handoff, **handoff)
    return msgspec.structs.replace(base, **changes)


def _instances(arguments: argparse.Namespace, base: Scenario) -> tuple[InstanceGroup, ...]:
    groups = _groups(arguments, base)
    if not arguments.instance:
        return groups
    if len(groups) > 1 or arguments.instances:
        raise ScenarioError("--instance goes without --instances, over at most one [[instance]]")
    devices = [spec.device for spec in arguments.instance]
    if len(set(devices)) < len(devices):
        raise ScenarioError("--instance: simulated instances share no device")
    return tuple(
        msgspec.structs.replace(
            groups[0], count=1, device=spec.device, role=spec.role, parallel=spec.parallel
        )
        for spec in arguments.instance
    )


def _groups(arguments: argparse.Namespace, base: Scenario) -> tuple[InstanceGroup, ...]:
    changes = {
        key: value
        for key, value in (
            ("profile", arguments.profile),
            ("count", arguments.instances),
            ("kv_bytes", arguments.kv_bytes),
            ("host_bytes", arguments.host_bytes),
            ("link_bytes_per_s", arguments.link_bytes_per_s),
            ("power_cap", arguments.power_cap),
        )
        if value is not None
    }
    if ("profile" in changes or "count" in changes) and len(base.instance) > 1:
        raise ScenarioError("--profile and --instances need a scenario with one [[instance]]")
    return tuple(msgspec.structs.replace(group, **changes) for group in base.instance)


def _limits(arguments: argparse.Namespace, base: ScenarioLimits) -> ScenarioLimits:
    words = "swap", "compress", "decode_admission", "starve_s", "max_pause_s"
    names = (*words, *(name.replace("-", "_") for name, *_ in _LIMITS))
    changes = {
        name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None
    }
    return msgspec.structs.replace(base, **changes)


def _from(least: int) -> Callable[[str], int]:
    """A flag's type: a whole number of at least `least`."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return parsed
