"""From measured steps to `Operators`: one non-negative least squares over all terms at once.

Each measured step is an equation in relative error. A step's time alone does not separate the
terms, so weak further equations ask for straight curves, and prefer to attribute time to tokens.
"""

from dataclasses import dataclass, replace

import numpy as np

from daemon.cost.curve import Curve
from daemon.cost.profile import Fit, Operators
from daemon.cost.step_cost import step_cost
from daemon.lab.profiler.experiments import HELD_OUT, Kind
from daemon.lab.profiler.least_squares import Float64, nonnegative
from daemon.lab.profiler.points import Point, repeat_sigma, spread
from daemon.lab.profiler.terms import Knots, Terms
from daemon.lab.profiles.errors import ProfileError

_STRAIGHT = (0.3, 0.3)  # strength of the wish for straight curves: of tokens, of surfaces
_SMALL = 0.15  # strength of the wish that attention costs little where there is no context
_LEAST_TOLERANCE = 0.01  # a bend of this share of a step is never worth a knot
_SAMPLE_KNOTS = (0, 1, 8, 32, 64, 128, 256, 512)
_COUNT_RATIO = 1.9  # least ratio between knots of chunk lengths


@dataclass(frozen=True, slots=True)
class Fitted:
    """Step costs, their error, and how much repeated steps vary."""

    operators: Operators
    fit: Fit
    repeat_sigma: float


def fit(points: list[Point]) -> Fitted:
    """Fit the points that are not held out, and take the error on the held-out ones.

    Raises ProfileError where too little was measured.
    """
    known = [point for point in points if point.kind not in HELD_OUT]
    terms = _terms(known)
    rough = _rough(known)
    unknowns = _solve(terms, known, rough)
    noise = repeat_sigma(points)
    counts = max(1.0, float(np.median([len(point.samples_s) for point in known])))
    tolerance = max(_LEAST_TOLERANCE, noise / counts**0.5)
    terms = replace(terms, tokens=_bent(terms.tokens, unknowns, rough, tolerance))
    operators = _operators(terms, _solve(terms, known, rough))
    return Fitted(operators, _error(operators, points, len(known)), noise)


def step_errors(operators: Operators, points: list[Point]) -> dict[Kind, list[float]]:
    """predicted / measured - 1 of every point, by kind."""
    cost = step_cost(operators)
    found: dict[Kind, list[float]] = {}
    for point in points:
        error = cost.step_s(point.work) / point.elapsed_s - 1.0
        found.setdefault(point.kind, []).append(error)
    return found


def _error(operators: Operators, points: list[Point], num_known: int) -> Fit:
    """Error and noise on the held-out points.

    A short budget may hold out nothing: then the error is unknown, and given as 0, since that of
    the fitted points would be too good; the noise is theirs.
    """
    held_out = [point for point in points if point.kind in HELD_OUT]
    judged = held_out or points
    cost = step_cost(operators)
    predicted = [cost.step_s(point.work) for point in judged]
    errors = [
        abs(guess / point.elapsed_s - 1.0) for guess, point in zip(predicted, judged, strict=True)
    ]
    logs = [
        float(np.log(sample / guess))
        for guess, point in zip(predicted, judged, strict=True)
        for sample in point.calm_s
    ]
    mape = float(np.mean(errors)) if held_out else 0.0
    return Fit(num_points=num_known, mape=mape, noise_sigma=spread(logs))


def _terms(points: list[Point]) -> Terms:
    """A knot wherever something was measured."""
    singles = [p.work for p in points if not p.work.num_decodes and len(p.work.chunks) == 1]
    decodes = [p.work for p in points if p.kind is Kind.DECODE]
    if not singles or not decodes:
        raise ProfileError("too little was measured to fit anything: allow more time")
    tokens = {work.num_tokens for work in (*singles, *decodes)}
    most_samples = max(point.work.num_samples for point in points)
    return Terms(
        tokens=_floats(tokens),
        samples=_floats({min(knot, most_samples) for knot in _SAMPLE_KNOTS}),
        decodes=_floats({work.num_decodes for work in decodes}),
        contexts=_floats({work.decode_context / work.num_decodes for work in decodes}),
        counts=_spaced(_floats({work.num_tokens for work in singles})),
        befores=_floats({work.chunks[0][1] for work in singles}),
    )


def _rough(points: list[Point]) -> Curve:
    """The least time of a step by its tokens: the scale of its errors."""
    fastest: dict[float, float] = {}
    for point in points:
        count = float(point.work.num_tokens)
        fastest[count] = min(point.elapsed_s, fastest.get(count, np.inf))
    at = sorted(fastest)
    return Curve(tuple(at), tuple(fastest[count] for count in at))


def _solve(terms: Terms, points: list[Point], rough: Curve) -> Float64:
    times = np.array([point.elapsed_s for point in points])
    measured = np.array([terms.row(point.work) for point in points]) / times[:, None]
    wishes = terms.wishes(rough, _STRAIGHT, _SMALL)
    target = np.concatenate([np.ones(len(points)), np.zeros(len(wishes))])
    # In units of a step, so that all columns are of like size.
    scale = float(np.median(times))
    return nonnegative(np.concatenate([measured, wishes]) * scale, target) * scale


def _bent(knots: Knots, unknowns: Float64, rough: Curve, tolerance: float) -> Knots:
    """The knots where a line between the remaining neighbours would err beyond the tolerance.

    The line must fit every knot left out so far, not only the last one.
    """
    at, value = np.array(knots), unknowns[: len(knots)]
    scale = np.array([rough(knot) for knot in knots])
    kept = list(range(len(knots)))
    while len(kept) > 2:
        costs = []
        for place in range(1, len(kept) - 1):
            ends = [kept[place - 1], kept[place + 1]]
            inner = slice(ends[0] + 1, ends[1])
            line = np.interp(at[inner], at[ends], value[ends])
            costs.append(float((np.abs(line - value[inner]) / scale[inner]).max()))
        least = int(np.argmin(costs))
        if costs[least] > tolerance:
            break
        del kept[least + 1]
    return tuple(knots[place] for place in kept)


def _operators(terms: Terms, unknowns: Float64) -> Operators:
    """The operators: the fixed part of every step separately, the tokens' part in the curves."""
    tokens, samples, decode, prefill = terms.curves(unknowns)
    fixed_s = min(tokens.value)
    rest = tuple(float(f"{value - fixed_s:.5g}") for value in tokens.value)
    return Operators(
        tokens_s=Curve(tokens.at, rest),
        prefill_s=prefill,
        decode_s=decode,
        sampled_s=samples,
        overhead_s=fixed_s,
    )


def _spaced(knots: Knots) -> Knots:
    """First, last, and the inner knots that lie far enough apart."""
    found = [knots[0]]
    for knot in knots[1:-1]:
        if knot >= _COUNT_RATIO * found[-1] and knot * _COUNT_RATIO <= knots[-1]:
            found.append(knot)
    return (*found, knots[-1]) if len(knots) > 1 else (knots[0],)


def _floats(values: set[int] | set[float]) -> Knots:
    return tuple(sorted(map(float, values)))
