"""The placements, which choose a sequence's instance, by their names in configuration. Pure."""

from daemon.placement.aladdin import BestFit
from daemon.placement.base import Placement
from daemon.placement.deferred import Deferred
from daemon.placement.distserve import NearSaturation
from daemon.placement.jsq import ShortestQueue
from daemon.placement.least_loaded import LeastLoaded
from daemon.placement.power_of_two import PowerOfTwo
from daemon.placement.round_robin import RoundRobin

PLACEMENTS: dict[str, type[Placement]] = {
    placement.name: placement
    for placement in (
        LeastLoaded,
        ShortestQueue,
        PowerOfTwo,
        NearSaturation,
        BestFit,
        RoundRobin,
        Deferred,
    )
}


SUCCESSORS = {"predictive": "least_loaded"}
"""Names that older configurations and journals may hold, and what is used in their place."""

NAMES = (*PLACEMENTS, *SUCCESSORS)
"""All names that are read; the names of `PLACEMENTS` are offered."""


def placement_named(name: str) -> Placement:
    """A placement by one of `NAMES`."""
    return PLACEMENTS[SUCCESSORS.get(name, name)]()


def meanings() -> dict[str, str]:
    """A line for each placement, by its name: the name and its meaning."""
    width = max(map(len, PLACEMENTS))
    return {name: f"{name:<{width}}  {placement.meaning}" for name, placement in PLACEMENTS.items()}
