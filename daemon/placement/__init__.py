"""Which instance takes a sequence: the placements, by the name that configuration uses. Pure."""

from daemon.placement.aladdin import BestFit
from daemon.placement.base import Placement
from daemon.placement.distserve import NearSaturation
from daemon.placement.jsq import ShortestQueue
from daemon.placement.least_loaded import LeastLoaded
from daemon.placement.power_of_two import PowerOfTwo

PLACEMENTS: dict[str, type[Placement]] = {
    placement.name: placement
    for placement in (
        LeastLoaded,
        ShortestQueue,
        PowerOfTwo,
        NearSaturation,
        BestFit,
    )
}


SUCCESSORS = {"predictive": "least_loaded"}
"""Names that configurations and journals of before may hold, and what is used in their place."""

NAMES = (*PLACEMENTS, *SUCCESSORS)
"""All names that are read; those of `PLACEMENTS` are offered."""


def placement_named(name: str) -> Placement:
    """A placement by one of `NAMES`."""
    return PLACEMENTS[SUCCESSORS.get(name, name)]()


def meanings() -> dict[str, str]:
    """A line for each placement, by its name: the name, and what it means."""
    width = max(map(len, PLACEMENTS))
    return {name: f"{name:<{width}}  {one.meaning}" for name, one in PLACEMENTS.items()}
