"""Which instance takes a sequence: the placements, by the name that configuration uses. Pure."""

from daemon.placement.base import Placement
from daemon.placement.least_loaded import LeastLoaded

PLACEMENTS: dict[str, type[Placement]] = {placement.name: placement for placement in (LeastLoaded,)}
