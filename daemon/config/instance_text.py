"""The text of an instance, `DEVICES[:tpN|ppN][:ROLE]`, and the faults of its parts.

DEVICES are `cpu`, `cuda:0` or the several GPUs of one instance, `cuda:0,1`: tensor parallelism
splits each layer over them (tpN), pipeline parallelism gives each some layers as a stage (ppN). The
last stage may be the CPU's, `cuda:0,cpu:pp2`. On `cpu` N ranks have a share of the cores each.
"""

import re

from daemon.base.nearest import did_you_mean, not_one_of
from daemon.config.schema import InstanceSpec
from daemon.state.role import Role

CPU = "cpu"
_DEVICES = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})(,(0|[1-9][0-9]{0,3}))*(,cpu)?")
_PARALLEL = re.compile(r"(?:tp|pp)([1-9][0-9]{0,3})")
_STAGES = "pp"

_ROLES = tuple(role.value for role in Role)
MOST_RANKS = 16
"""Most ranks of an instance."""


def parse_instance(text: str) -> InstanceSpec:
    """The instance of a text, without a name. Raises ValueError with a sentence."""
    head, *parts = text.split(":")
    device = head
    if head != "cpu" and parts:
        device = f"{head}:{parts.pop(0)}"
    if fault := device_fault(device):
        raise ValueError(f"the device {fault}")
    parallel = parts.pop(0) if parts and _PARALLEL.fullmatch(parts[0]) else ""
    role = parts.pop(0) if parts else Role.MIXED.value
    if role not in _ROLES:
        meant = did_you_mean(role, _ROLES if parallel else (*_ROLES, "tp2", "pp2"))
        expected = f"DEVICES, then one tpN or ppN, then a role ({', '.join(_ROLES)})"
        raise ValueError(f"{text!r} must be {expected}: {role!r} is none{meant}")
    if parts:
        raise ValueError(f"{text!r} goes on behind its role: {':'.join(parts)!r}")
    if fault := parallel_fault(device, parallel):
        raise ValueError(fault)
    return InstanceSpec(device, role, parallel=_needed(parallel))


def format_instance(spec: InstanceSpec) -> str:
    """The text of an instance, its role included."""
    return ":".join(part for part in (spec.device, _needed(spec.parallel), spec.role) if part)


def split_devices(device: str) -> tuple[str, ...]:
    """The devices that a text names, each by itself: those of `cuda:0,cpu` are `cuda:0`, `cpu`."""
    kind, _, numbers = device.partition(":")
    parts = numbers.split(",") if numbers else [CPU]
    return tuple(CPU if part == CPU else f"{kind}:{part}" for part in parts)


def devices_of(spec: InstanceSpec) -> tuple[str, ...]:
    """The device of each part of an instance, in order: of its ranks, or of its stages."""
    found = split_devices(spec.device)
    return found * num_ranks(spec) if len(found) == 1 else found


def rank_devices(spec: InstanceSpec) -> tuple[str, ...]:
    """The device of each rank of an instance; the last stage is the first rank."""
    found = devices_of(spec)
    return (*found[-1:], *found[:-1]) if num_stages(spec) > 1 else found


def gpus_of(spec: InstanceSpec) -> tuple[str, ...]:
    """The GPUs of an instance, in order."""
    return tuple(device for device in split_devices(spec.device) if device != CPU)


def sums_on_gpus(spec: InstanceSpec) -> bool:
    """Whether its ranks share layers on several GPUs, and so sum by NCCL."""
    return len(gpus_of(spec)) > 1 and num_stages(spec) == 1


def num_ranks(spec: InstanceSpec) -> int:
    """The number of worker processes that compute an instance together."""
    found = _PARALLEL.fullmatch(_needed(spec.parallel))
    return int(found[1]) if found else 1


def num_stages(spec: InstanceSpec) -> int:
    """The number of pipeline stages of an instance; 1 where its ranks share layers."""
    return num_ranks(spec) if spec.parallel.startswith(_STAGES) else 1


def split_text(spec: InstanceSpec) -> str:
    """How an instance's ranks divide the model, such as tp2 or pp2 of 20+10; empty: it has one."""
    layers = "+".join(map(str, spec.layers))
    return f"{_needed(spec.parallel)} of {layers}" if layers else _needed(spec.parallel)


def placed(spec: InstanceSpec) -> str:
    """The device of an instance as viewers see it, its ranks included: `cpu:tp2`."""
    return ":".join(part for part in (spec.device, _needed(spec.parallel)) if part)


def device_fault(device: str) -> str:
    """The fault of a text of devices; empty: none."""
    if not _DEVICES.fullmatch(device):
        return f"must be cpu or cuda:N, got {device!r}"
    numbers = device.removeprefix("cuda:").split(",")
    return f"{device!r} names a GPU twice" if len(set(numbers)) < len(numbers) else ""


def parallel_fault(device: str, parallel: str) -> str:
    """Why these devices cannot compute together as `parallel` says; empty: they can."""
    found = _PARALLEL.fullmatch(parallel)
    if found and int(found[1]) > MOST_RANKS:
        return f"{parallel} is beyond the {MOST_RANKS} ranks that an instance may have"
    if found and device == CPU:
        return ""
    if parallel and not found:
        return f"must be tpN or ppN, such as tp2, got {parallel!r}"
    there = len(split_devices(device))
    if not parallel and there > 1:
        return f"{device} are {there} devices: say tp{there} or pp{there}, how they work together"
    if found and device.endswith(f",{CPU}") and not parallel.startswith(_STAGES):
        return f"a GPU and the CPU share no layers as {parallel}: say pp{there}, layers for each"
    if found and int(found[1]) != there:
        return f"{parallel} takes {found[1]} devices, and {device} is {there}"
    return ""


def role_fault(role: str) -> str:
    """Why an instance cannot have this role; empty: it can."""
    return "" if role in _ROLES else not_one_of(role, _ROLES)


def _needed(parallel: str) -> str:
    """The parallelism, without tp1 and pp1, which mean none."""
    return "" if parallel in ("tp1", "pp1") else parallel
