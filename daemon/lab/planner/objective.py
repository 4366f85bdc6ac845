"""The objective of a plan: what a candidate's rate is divided by, and whether a rate is asked."""

import math

import msgspec

from daemon.base.nearest import not_one_of
from daemon.lab.planner.candidate import PlanCandidate
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.price import DEFAULT_PRICES

OBJECTIVES = {
    "goodput": "requests/s of all devices",
    "devices": "requests/s for each device in use (DistServe)",
    "cost": "requests/s for each dollar an hour (Vidur)",
    "power": "requests/s for each watt provisioned (Splitwise)",
    "makespan": "requests/s where all come at once: offline work, no SLOs",
}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """A value to be as large as possible: a rate that is sustained, over its cost.

    With `rate_rps`, more than that rate is worth nothing: the cheapest candidate that sustains it
    wins.
    """

    name: str = "goodput"
    rate_rps: float = 0.0  # asked; 0: as high as possible
    prices: dict[str, float] = msgspec.field(default_factory=lambda: dict(DEFAULT_PRICES))
    most_rent: float = 0.0  # dollars an hour at most (iso-cost); 0: any
    most_power_w: float = 0.0  # provisioned watts at most (iso-power); 0: any

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise PlannerError(f"objective {not_one_of(self.name, OBJECTIVES)}")
        for name in ("most_rent", "most_power_w"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlannerError(f"objective: {name} must be 0 or more, got {value:g}")

    @property
    def is_offline(self) -> bool:
        """Whether all requests are there at once, so that no rate is asked or searched."""
        return self.name == "makespan"

    def divisor(self, candidate: PlanCandidate) -> float:
        """The cost of a candidate, in the objective's unit. Raises PlannerError."""
        if self.name == "cost":
            return candidate.rent(self.prices)
        if self.name == "power":
            return candidate.power_w()
        if self.name == "devices" or self.rate_rps:
            return float(candidate.num_devices)
        return 1.0

    def value(self, candidate: PlanCandidate, rps: float) -> float:
        """The worth of a sustained rate."""
        counted = min(rps, self.rate_rps) if self.rate_rps else rps
        if self.rate_rps and rps < self.rate_rps:
            return 0.0
        return counted / self.divisor(candidate)

    def rate_to_beat(self, candidate: PlanCandidate, value: float) -> float:
        """The rate at which a candidate is worth `value`."""
        return self.rate_rps or value * self.divisor(candidate)

    def fault(self, candidate: PlanCandidate) -> str:
        """The budget that a candidate exceeds; empty: none. Raises PlannerError."""
        if self.most_rent and candidate.rent(self.prices) > self.most_rent * (1 + 1e-9):
            return "price"
        if self.most_power_w and candidate.power_w() > self.most_power_w * (1 + 1e-9):
            return "watts"
        return ""
