"""Operators measured alone, and curves of each between few points (Vidur sections 4.3 and 4.4).

Token-level operators are measured over tokens, attention over chunks and the tokens before them
and over decodes and their contexts, the output head and the sampler over sampled rows, and copies
over blocks. One device has no communication.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from msgspec.structs import replace

from daemon.cost.curve import Curve
from daemon.cost.profile import OperatorCurve, OperatorsAlone
from daemon.cost.step_cost import SumOfOperators
from daemon.cost.work import StepWork
from daemon.lab.profiler.experiments import HELD_OUT, LoadedLimits, doubling
from daemon.lab.profiler.points import Point
from daemon.lab.profiler.synthetic import Rows, StepRow
from daemon.lab.profiles.fitting import fit_curve, mape, rounded
from daemon.lab.profiles.grids import surface_of

ATTENTION, COPIES = "attention", "block copies"
"""Names that the worker gives to operators whose input is not the tokens of a step."""
OF_SAMPLES = ("head", "sampler")

COPIED_BLOCKS = (1, 16, 64)
_BEFORE = (0, 256, 1024)
_CONTEXTS = (16, 256, 1024, 4096)


class _Cells(defaultdict[str, defaultdict[tuple[int, int], list[float]]]):
    """Times of each operator by its input: a count and 0, or two counts."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class AlonePoint:
    """One operator of one kind of step, measured alone."""

    name: str
    work: StepWork
    num_copied: int  # blocks
    time_s: float


def operator_steps(limits: LoadedLimits) -> list[Rows]:
    """The steps whose operators are measured, within the limits: small grids over both inputs,
    chunks and decodes in turn, so that few of them show something of everything.
    """
    most = min(limits.max_batch_tokens, limits.max_len)
    counts, batches = doubling(2, most, 4), doubling(1, limits.max_slots, 4)
    chunks = [(StepRow(count, before),) for before in _BEFORE for count in counts]
    chunks += [(StepRow(count, 0),) for count in doubling(4, most, 4)]
    decodes = [(StepRow(1, context - 1),) * count for context in _CONTEXTS for count in batches]
    found = (rows for pair in zip_longest(decodes, chunks, fillvalue=()) for rows in pair)
    return [rows for rows in dict.fromkeys(found) if limits.allow(rows)]


def fit_alone(measured: list[AlonePoint], steps: list[Point]) -> OperatorsAlone | None:
    """The operators' curves; None where the worker told none apart.

    `steps` are whole steps: the fitted ones show what a step has beyond its operators, those held
    out the error of the sums.
    """
    tokens, samples = _Cells(), _Cells()
    prefill, decode, copied = _Cells(), _Cells(), _Cells()
    for point in measured:
        work = point.work
        if point.name == COPIES:
            copied[point.name][point.num_copied, 0].append(point.time_s)
        elif point.name in OF_SAMPLES:
            samples[point.name][work.num_samples, 0].append(point.time_s)
        elif point.name != ATTENTION:
            tokens[point.name][work.num_tokens, 0].append(point.time_s)
        elif work.chunks:
            prefill[point.name][work.chunks[0]].append(point.time_s)
        else:
            context = work.decode_context // work.num_decodes
            decode[point.name][work.num_decodes, context].append(point.time_s)
    if not (tokens and prefill and decode):
        return None
    sums = OperatorsAlone(
        tokens_s=_curves(tokens),
        sampled_s=_curves(samples),
        prefill_s=surface_of(_medians(prefill[ATTENTION])),
        decode_s=surface_of(_medians(decode[ATTENTION])),
        copied_s=next((found.time_s for found in _curves(copied)), Curve((0.0,), (0.0,))),
        overhead_s=0.0,
        num_points=len(measured),
    )
    return _beside_steps(sums, steps)


def _beside_steps(sums: OperatorsAlone, steps: list[Point]) -> OperatorsAlone:
    """The sums with what whole steps have beyond them, and their error on those held out."""
    known = [point for point in steps if point.kind not in HELD_OUT]
    held_out = [point for point in steps if point.kind in HELD_OUT]
    cost = SumOfOperators(sums)
    beyond_s = [point.elapsed_s - cost.step_s(point.work) for point in known]
    whole = replace(sums, overhead_s=max(0.0, rounded(median(beyond_s)))) if known else sums
    if not held_out:
        return whole
    cost = SumOfOperators(whole)
    predicted = [cost.step_s(point.work) for point in held_out]
    return replace(whole, mape=rounded(mape(predicted, [point.elapsed_s for point in held_out])))


def _curves(cells: _Cells) -> tuple[OperatorCurve, ...]:
    """A curve for each operator, by the one count of its input."""
    found = []
    for name, times in cells.items():
        middles = _medians(times)
        at = sorted(count for count, _ in middles)
        found.append(OperatorCurve(name, fit_curve(at, [middles[count, 0] for count in at])))
    return tuple(found)


def _medians(times: Mapping[tuple[int, int], list[float]]) -> dict[tuple[int, int], float]:
    return {place: median(values) for place, values in times.items()}
