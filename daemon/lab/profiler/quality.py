"""Reasons to doubt measurements: a fit to few points agrees with itself too well.

Without steps of several sizes a curve has no slope, and nothing can be fitted. All other doubts are
reported, and kept with the profile.
"""

from collections.abc import Iterator, Sequence

from daemon.cost.work import StepWork
from daemon.lab.profiler.experiments import HELD_OUT, Kind
from daemon.lab.profiler.fit import Fitted
from daemon.lab.profiler.points import Point, disturbed_share
from daemon.lab.profiles.doubts import error_doubt
from daemon.lab.profiles.errors import ProfileError

LEAST_SIZES = {"numbers of tokens": 3, "numbers of decodes": 3, "contexts of decodes": 2}
"""Least numbers of different sizes: fewer make no curve."""
MOST_VARIATION = 0.1  # of equal steps, as a standard deviation of the logarithm
MOST_DISTURBED = 0.25  # of the measurements
MOST_USED_BY_OTHERS = 0.1  # of the cores
LEAST_REPEATED = 0.5  # of the kinds of step, measured more than once
LEAST_REACH = 0.5  # of the largest step that the worker may get

_ADVICE = "allow more time (--budget-s), or measure while the machine has nothing else to do"


def refuse_unfit(points: Sequence[Point], wanted: Sequence[Point]) -> None:
    """Raise ProfileError where the points make no curve, though the wanted ones would."""
    had, could = _sizes(points), _sizes(wanted)
    short = [
        f"{had[what]} of {could[what]} {what}"
        for what, least in LEAST_SIZES.items()
        if had[what] < min(least, could[what])
    ]
    if short:
        raise ProfileError(f"too little was measured: {', '.join(short)}; {_ADVICE}")


def lacks(
    points: list[Point], wanted: Sequence[Point], fitted: Fitted, used_by_others: float
) -> Iterator[str]:
    """A sentence for each reason to doubt a fit; `wanted` are all points that could be measured."""
    if not any(point.kind in HELD_OUT for point in points):
        yield "no step was held out, so that the error is not known"
    elif doubt := error_doubt(fitted.fit.mape):
        yield doubt
    repeated = sum(len(point.samples_s) > 1 for point in points)
    if repeated < LEAST_REPEATED * len(points):
        yield f"{len(points) - repeated} of {len(points)} kinds of step were measured once only"
    if fitted.repeat_sigma > MOST_VARIATION:
        yield f"equal steps vary by {fitted.repeat_sigma:.0%}"
    disturbed = disturbed_share(points)
    if disturbed > MOST_DISTURBED:
        yield f"{disturbed:.0%} of the steps took over 1.25 times the fastest of their kind"
    if used_by_others > MOST_USED_BY_OTHERS:
        yield f"other processes used {used_by_others:.0%} of the cores meanwhile"
    reach = _reach(points)
    for (what, most), could in zip(reach.items(), _reach(wanted).values(), strict=True):
        if most < LEAST_REACH * could:
            yield f"nothing beyond {most:,} {what} was measured, where up to {could:,} can come"


def _sizes(points: Sequence[Point]) -> dict[str, int]:
    """The number of different sizes on each axis of the fit."""
    decodes = [point.work for point in points if point.kind is Kind.DECODE]
    tokens = {point.work.num_tokens for point in points if point.kind is Kind.TOKENS}
    return {
        "numbers of tokens": len(tokens),
        "numbers of decodes": len({work.num_decodes for work in decodes}),
        "contexts of decodes": len({_context(work) for work in decodes}),
    }


def _reach(points: Sequence[Point]) -> dict[str, int]:
    """The largest size on each axis of the fit."""
    works = [point.work for point in points if point.kind not in HELD_OUT]
    return {
        "tokens of a step": max((work.num_tokens for work in works), default=0),
        "decodes of a step": max((work.num_decodes for work in works), default=0),
        "tokens of context": max((_context(work) for work in works), default=0),
    }


def _context(work: StepWork) -> int:
    """The mean context of a step's decodes."""
    return work.decode_context // work.num_decodes if work.num_decodes else 0
