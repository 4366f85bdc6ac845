"""The flags of `llmd simulate` that make a scenario, alone or over a file."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from daemon.cli.workload_flags import workload_spec
from daemon.scheduler.policies import POLICIES
from daemon.simulator.scenario import InstanceGroup, Limits, Scenario, ScenarioError
from daemon.simulator.scenario_file import read_scenario
from daemon.workload.workload import SloClass, WorkloadSpec

_LIMITS: tuple[tuple[str, int, str], ...] = (
    ("max-running", 0, "sequences in a batch (256)"),
    ("max-batch-tokens", 0, "token budget of a step (the policy's own)"),
    ("prefill-chunk", 0, "prompt tokens of a sequence in a step (as the budget)"),
    ("max-waiting", 0, "sequences that may queue before requests are rejected (no bound)"),
    ("max-len", 0, "tokens of the longest sequence (the model's context)"),
    ("block-size", 0, "tokens of a KV block (16)"),
    ("depth", 0, "steps in flight (chosen from the step time)"),
)


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
        "--power-cap", type=float, metavar="X", help="share of the devices' power limit (1)"
    )
    group = parser.add_argument_group("scheduling")
    group.add_argument("--policy", metavar="P", help=f"{', '.join(POLICIES)} (sarathi)")
    group.add_argument("--predictor", metavar="P", help="none, mean, oracle or noisy:SIGMA (mean)")
    for name, default, what in _LIMITS:
        group.add_argument(f"--{name}", type=int, default=default, metavar="N", help=what)
    group.add_argument(
        "--no-noise", action="store_true", help="step times exactly as the profile's fit says"
    )


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """File and flags together. Raises ScenarioError, WorkloadError."""
    if arguments.scenario is None:
        if not arguments.profile:
            raise ScenarioError("on what? give --profile NAME, or a scenario file")
        base = Scenario(
            workload=workload_spec(arguments), instance=(InstanceGroup(profile=arguments.profile),)
        )
    else:
        base = read_scenario(arguments.scenario)
    changes: dict[str, Any] = {
        "instance": _instances(arguments, base),
        "limits": _limits(arguments, base.limits),
        "workload": _workload(arguments, base.workload),
        "noise": base.noise and not arguments.no_noise,
    }
    for name in ("policy", "predictor", "seed"):
        if getattr(arguments, name):
            changes[name] = getattr(arguments, name)
    return msgspec.structs.replace(base, **changes)


def _instances(arguments: argparse.Namespace, base: Scenario) -> tuple[InstanceGroup, ...]:
    changes = {
        key: value
        for key, value in (
            ("profile", arguments.profile),
            ("count", arguments.instances),
            ("kv_bytes", arguments.kv_bytes),
            ("power_cap", arguments.power_cap),
        )
        if value is not None
    }
    if ("profile" in changes or "count" in changes) and len(base.instance) > 1:
        raise ScenarioError("--profile and --instances need a scenario with one [[instance]]")
    return tuple(msgspec.structs.replace(group, **changes) for group in base.instance)


def _limits(arguments: argparse.Namespace, base: Limits) -> Limits:
    names = (name.replace("-", "_") for name, *_ in _LIMITS)
    changes = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
    return msgspec.structs.replace(base, **changes)


def _workload(arguments: argparse.Namespace, base: WorkloadSpec) -> WorkloadSpec:
    """The file's workload with what the flags say of it."""
    if arguments.scenario is None:
        return base
    if arguments.trace is not None or arguments.workload:
        return workload_spec(arguments)
    changes: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("requests", "arrivals", "rate", "rate_scale", "seed")
        if getattr(arguments, name)
    }
    promises = SloClass(
        ttft_s=arguments.slo_ttft,
        tpot_s=arguments.slo_tpot,
        normalized_latency_s=arguments.slo_normalized_latency,
    )
    if arguments.slo or promises != SloClass():
        changes["classes"] = tuple(arguments.slo) or (promises,)
    return msgspec.structs.replace(base, **changes)
