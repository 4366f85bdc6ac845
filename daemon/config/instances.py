"""Instances of a configuration: the names that they get, and their limits."""

from dataclasses import replace

import msgspec

from daemon.config.instance_text import num_ranks
from daemon.config.schema import Config, InstanceSpec
from daemon.core.values.limits import InstanceLimits, largest_step, limits_of
from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role

OWN_COUNTS = ("max_running", "max_batch_tokens", "prefill_chunk", "depth")
OWN_CHOICES = {
    "policy": tuple(POLICIES),
    "swap": SWAP_MODES,
    "decode_admission": DECODE_ADMISSIONS,
}
"""The limits that an instance may have of its own: numbers, and choices with their values."""


def shared_limits(config: Config) -> InstanceLimits:
    """The limits of an instance that has none of its own."""
    words = "policy", "decode_admission", *OWN_COUNTS
    shared = {name: getattr(config.scheduler, name) for name in words}
    return InstanceLimits(swap=config.memory.swap, **shared)


def instance_limits(config: Config, spec: InstanceSpec) -> InstanceLimits:
    """The limits of one instance of a configuration."""
    return limits_of(spec, shared_limits(config))


def worker_limits(config: Config, spec: InstanceSpec) -> InstanceLimits:
    """The limits of an instance's worker, which has memory for the chunks of any role."""
    limits = instance_limits(config, spec)
    may_prefill = len(config.instance) > 1 and (
        spec.role == Role.PREFILL or config.scheduler.roles != Role.MIXED
    )
    largest = largest_step(limits, may_prefill, is_open=_measures(spec, limits))
    return replace(limits, max_batch_tokens=largest)


def finds_size(config: Config, spec: InstanceSpec) -> bool:
    """Whether an instance's worker measures its target forward size: for its policy, or for the
    chunks of a prefill instance.
    """
    limits = instance_limits(config, spec)
    if POLICIES[limits.policy].fills_device:
        return _measures(spec, limits)
    return worker_limits(config, spec).max_batch_tokens > limits.max_batch_tokens


def _measures(spec: InstanceSpec, limits: InstanceLimits) -> bool:
    """Whether a size that is measured would count. Not on a CPU: other programs' load at that
    moment would decide it; nor by ranks, of which each would find its own.
    """
    is_open = limits.max_batch_tokens == POLICIES[limits.policy].batch_tokens
    return is_open and spec.device.startswith("cuda") and num_ranks(spec) == 1


def completed(config: Config) -> tuple[InstanceSpec, ...]:
    """The instances of a configuration as written, each with a name; one with a policy of its own
    and no budget gets that policy's.
    """
    return named(tuple(_budgeted(spec, shared_limits(config)) for spec in config.instance))


def _budgeted(spec: InstanceSpec, shared: InstanceLimits) -> InstanceSpec:
    if not (spec.policy or spec.max_batch_tokens):
        return spec
    limits = limits_of(spec, shared)
    return msgspec.structs.replace(
        spec,
        max_batch_tokens=limits.max_batch_tokens,
        prefill_chunk=spec.prefill_chunk or limits.prefill_chunk,
    )


def named(specs: tuple[InstanceSpec, ...]) -> tuple[InstanceSpec, ...]:
    """The instances, each with a name of its own."""
    taken = {spec.name for spec in specs}
    result = []
    for spec in specs:
        name = spec.name or _free_name(spec.device.replace(":", "").replace(",", "-"), taken)
        taken.add(name)
        result.append(msgspec.structs.replace(spec, name=name))
    return tuple(result)


def _free_name(stem: str, taken: set[str]) -> str:
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
