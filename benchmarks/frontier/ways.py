"""The policies that are compared, and what they are told of answers' lengths."""

from benchmarks.studies.scheduling import NOISY, PAUSE_S, Way
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.gittins import Gittins


class Unpaced(Gittins):
    """The order alone, with no promise to those that have begun."""

    name = "gittins:inf"
    paces = False


def know_unpaced() -> None:
    """Let scenarios of this process name it."""
    POLICIES[Unpaced.name] = Unpaced


BASELINES = (Way("sarathi", RECOMPUTE), Way("sarathi"))
FEATURES = "features"
"""The daemon's own predictor; in its place stands one that errs as much, as there is no text."""

PAUSES_S = (0.5, 1.0, 2.0, PAUSE_S, 8.0)
PREDICTORS = ("none", "mean", FEATURES, NOISY, "oracle", "adversary")

PLAIN = (Way("vllm"), Way("mlfq"))
TOLD = (
    Way("speculative"),
    *(Way("gittins", max_pause_s=pause_s) for pause_s in PAUSES_S),
    Way(Unpaced.name),
)
"""Policies that make use of predictions."""
WAYS = {
    way.name: way
    for way in (*PLAIN, *(one._replace(predictor=told) for one in TOLD for told in PREDICTORS))
}
"""All but the baselines, by name."""


def chosen_ways(text: str) -> list[Way]:
    """The baselines, and ways by their names. Raises ValueError."""
    names = text.split(",")
    if unknown := set(names) - set(WAYS):
        raise ValueError(f"no policy {', '.join(sorted(unknown))}: choose {', '.join(WAYS)}")
    return [*BASELINES, *(WAYS[name] for name in names)]


def swept() -> str:
    """Both sweeps: of pauses with the predictor `mean`, of predictors with the daemon's pause."""
    return ",".join(
        name
        for name, way in WAYS.items()
        if way in PLAIN or way.predictor == "mean" or _is_usual(way)
    )


def _is_usual(way: Way) -> bool:
    return way.policy != Unpaced.name and way.max_pause_s == PAUSE_S
