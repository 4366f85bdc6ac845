"""Steps composed of operators' tables: the fit, and its error on points left out of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from daemon.cost.curve import Curve
from daemon.cost.profile import Fit, Operators
from daemon.cost.step_cost import OperatorCost
from daemon.cost.work import StepWork
from daemon.lab.profiles.fitting import fit_curve, mape
from daemon.lab.profiles.grids import Cells, surface_of

_NOTHING = Curve((0.0,), (0.0,))


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The tables of one model at one tensor parallel degree, in seconds per step."""

    by_tokens: Mapping[int, float]  # all but attention, all layers
    prefill: Cells  # attention by (chunk, tokens before it), all layers
    decode: Cells  # attention by (decodes, mean context), all layers
    sampled_s: Curve = _NOTHING
    communication_s: Curve = _NOTHING


def fit_operators(tables: OperatorTables, without: Collection[int] = ()) -> Operators:
    """The fit to all points, or to those whose token count is not in `without`."""
    tokens = [count for count in sorted(tables.by_tokens) if count not in without]
    return Operators(
        tokens_s=fit_curve(tokens, [tables.by_tokens[count] for count in tokens]),
        prefill_s=surface_of(_rest(tables.prefill, without)),
        decode_s=surface_of(_rest(tables.decode, without)),
        sampled_s=tables.sampled_s,
        communication_s=tables.communication_s,
    )


def held_out_fit(tables: OperatorTables, every: int, noise_sigma: float) -> Fit:
    """The number of points in the tables, and the error of a fit without some of them.

    Left out is each `every`-th token count. The error is on steps of one chunk and of decodes
    alone; output head and communication are excluded, since their tables have other sizes.
    """
    held_out = frozenset(sorted(tables.by_tokens)[every // 2 : -1 : every])
    fitted = replace(fit_operators(tables, held_out), sampled_s=_NOTHING, communication_s=_NOTHING)
    cost = OperatorCost(fitted)
    points = [
        (StepWork(0, 0, ((chunk, before),)), tables.by_tokens[chunk] + attention_s)
        for (chunk, before), attention_s in tables.prefill.items()
        if chunk in held_out
    ]
    points += [
        (StepWork(decodes, decodes * context), tables.by_tokens[decodes] + attention_s)
        for (decodes, context), attention_s in tables.decode.items()
        if decodes in held_out
    ]
    error = 0.0  # not known
    if points:
        error = mape([cost.step_s(work) for work, _ in points], [truth for _, truth in points])
    num_fitted = len(tables.by_tokens) + len(tables.prefill) + len(tables.decode)
    return Fit(num_points=num_fitted, mape=round(error, 4), noise_sigma=noise_sigma)


def _rest(cells: Cells, without: Collection[int]) -> Cells:
    return {place: value for place, value in cells.items() if place[0] not in without}
