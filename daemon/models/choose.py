"""The instances that serve where none is named.

Each GPU that holds the model alone is one, or else several devices compute together.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from daemon.config.find import DeviceCandidate, Found
from daemon.config.instance_text import parse_instance, split_devices
from daemon.config.instances import named
from daemon.models.propose import Proposal

_ALONE = "no GPU here holds this model with its whole context alone"


def choose_instances(found: Found, proposals: Sequence[Proposal]) -> Found:
    """The instances that were found, each on a device; where no GPU holds the whole of the model's
    context alone the best proposal, if that has several devices compute together. A GPU that holds
    the model with less context is not slowed down by the CPU.
    """
    if not found.candidates or any(map(_holds_all, found.candidates)):
        return found
    on_gpus = not all(each.fault for each in found.candidates)
    able = (each for each in proposals if not each.waits_for)
    best = next((each for each in able if not (on_gpus and each.uses_cpu)), None)
    if best is None:
        return found
    specs = tuple(map(parse_instance, best.instances))
    if not best.experts_on_cpu and all(len(split_devices(spec.device)) == 1 for spec in specs):
        return found
    alone = tuple(
        replace(each, fault=each.fault or f"too little memory: {each.room}")
        for each in found.candidates
    )
    why = f"{_ALONE}: {best}"
    return Found(named(specs), alone, why_several=why, experts_on_cpu=best.experts_on_cpu)


def _holds_all(candidate: DeviceCandidate) -> bool:
    """Whether a GPU serves, and that with the longest context."""
    return not candidate.fault and not candidate.tokens
