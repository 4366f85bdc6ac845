"""Instances as the command line writes them, and the names they get."""

from daemon.config.schema import InstanceSpec

ROLES = ("mixed", "prefill", "decode")


def parse_instance(text: str) -> InstanceSpec:
    """`cpu`, `cpu:mixed`, `cuda:0` or `cuda:0:mixed` as an instance without a name."""
    device, _, role = text.rpartition(":")
    if device and not role.isdigit():
        return InstanceSpec(device=device, role=role)
    return InstanceSpec(device=text)


def named(specs: tuple[InstanceSpec, ...]) -> tuple[InstanceSpec, ...]:
    """The instances, each with a name of its own."""
    taken = {spec.name for spec in specs}
    result = []
    for spec in specs:
        name = spec.name or _free_name(spec.device.replace(":", ""), taken)
        taken.add(name)
        result.append(InstanceSpec(device=spec.device, role=spec.role, name=name))
    return tuple(result)


def _free_name(stem: str, taken: set[str]) -> str:
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name
