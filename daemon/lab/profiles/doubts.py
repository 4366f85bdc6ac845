"""Reasons to doubt a profile's step times: those of the times that a simulation takes.

A profile keeps the reasons that its measurement gave (`fit.lacks`). The error among them is that of
the fit to whole steps; where step times are sums of operators, the error of the sums counts.
"""

from daemon.cost.profile import Profile
from daemon.cost.step_cost import chosen

MOST_ERROR = 0.15
"""The largest error of steps held out that is no reason to doubt."""

_OF_FIT = "the error of steps held out is "


def error_doubt(mape: float) -> str:
    """The sentence for an error of the fit to whole steps; empty: it is small enough."""
    return f"{_OF_FIT}{mape:.0%}" if mape > MOST_ERROR else ""


def doubts(profile: Profile, times: str = "") -> list[str]:
    """The reasons to doubt the step times of a profile, as `chosen` by `times`, as sentences."""
    operators = chosen(profile, times).operators
    if operators is None:
        return list(profile.fit.lacks)
    others = [lack for lack in profile.fit.lacks if not lack.startswith(_OF_FIT)]
    if operators.mape > MOST_ERROR:
        others.append(f"the error of the operators' sums on steps held out is {operators.mape:.0%}")
    elif not operators.mape:
        others.append("the error of the operators' sums is not known")
    return others
