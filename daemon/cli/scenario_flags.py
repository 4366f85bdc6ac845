"""The flags of `llmd simulate` that make a scenario, alone or over a file."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daemon.cli.workload_flags import workload_spec
from daemon.memory.swap_space import SWAP_MODES
from daemon.predict.lengths import CHOICES
from daemon.scheduler.policies import POLICIES
from daemon.simulator.scenario import InstanceGroup, Limits, Scenario, ScenarioError
from daemon.simulator.scenario_file import read_scenario

_LIMITS: tuple[tuple[str, int, str], ...] = (
    ("max-running", 1, "sequences in a batch (256)"),
    ("max-batch-tokens", 0, "token budget of a step (the policy's own)"),
    ("prefill-chunk", 0, "prompt tokens of a sequence in a step (as the budget)"),
    ("max-waiting", 0, "sequences that may queue before requests are rejected (no bound)"),
    ("max-len", 0, "tokens of the longest sequence (the model's context)"),
    ("block-size", 1, "tokens of a KV block (16)"),
    ("depth", 0, "steps in flight (chosen from the step time)"),
)
"""Each flag, its least value and what it is; 0 gives the choice back to what stands in brackets."""


def add_scenario_flags(parser: argparse.ArgumentParser) -> None:
    """Add them, in groups of their own."""
    parser.add_argument(
        "scenario", nargs="?", type=Path, metavar="SCENARIO.toml", help="flags override its values"
    )
    group = parser.add_argument_group("instances")
    group.add_argument(
        "--profile", metavar="NAME|FILE", help="model and device, such as opt-13b@a100-80g"
    )
    group.add_argument("--instances", type=int, metavar="N", help="how many of them (1)")
    group.add_argument(
        "--kv-bytes", type=float, metavar="B", help="KV memory of each (from the memory formula)"
    )
    group.add_argument(
        "--host-bytes", type=float, metavar="B", help="host memory of each to swap KV to (64e9)"
    )
    group.add_argument(
        "--power-cap", type=float, metavar="X", help="share of the devices' power limit (1)"
    )
    group = parser.add_argument_group("scheduling")
    group.add_argument("--policy", metavar="P", help=f"{', '.join(POLICIES)} (sarathi)")
    group.add_argument("--predictor", metavar="P", help=f"{CHOICES} (mean)")
    group.add_argument(
        "--swap",
        choices=SWAP_MODES,
        help="of those who give way: copied ahead of need, copied at need, computed again, or "
        "nobody gives way to a newcomer (the policy's own)",
    )
    group.add_argument(
        "--starve-s", type=float, metavar="S", help="wait before a promotion of mlfq (0.3)"
    )
    for name, least, what in _LIMITS:
        group.add_argument(f"--{name}", type=_from(least), metavar="N", help=what)
    group.add_argument(
        "--no-noise", action="store_true", help="step times exactly as the profile's fit says"
    )


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """File and flags together. Raises ScenarioError, WorkloadError."""
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
    for name in ("policy", "predictor", "seed"):
        if getattr(arguments, name) is not None:
            changes[name] = getattr(arguments, name)
    return msgspec.structs.replace(base, **changes)


def _instances(arguments: argparse.Namespace, base: Scenario) -> tuple[InstanceGroup, ...]:
    changes = {
        key: value
        for key, value in (
            ("profile", arguments.profile),
            ("count", arguments.instances),
            ("kv_bytes", arguments.kv_bytes),
            ("host_bytes", arguments.host_bytes),
            ("power_cap", arguments.power_cap),
        )
        if value is not None
    }
    if ("profile" in changes or "count" in changes) and len(base.instance) > 1:
        raise ScenarioError("--profile and --instances need a scenario with one [[instance]]")
    return tuple(msgspec.structs.replace(group, **changes) for group in base.instance)


def _limits(arguments: argparse.Namespace, base: Limits) -> Limits:
    names = ("swap", "starve_s", *(name.replace("-", "_") for name, *_ in _LIMITS))
    changes = {
        name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None
    }
    return msgspec.structs.replace(base, **changes)


def _from(least: int) -> Callable[[str], int]:
    """A whole number that is not below `least`, as a flag's type."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return parsed
