"""The terms of `Operators` as columns of a linear model: every value at a knot is one unknown.

Curves and surfaces are straight between knots, so a step's time is a weighted sum of their values
at the knots around it. Attention never falls with context, nor sampling with rows: there the
unknowns are the rises from one knot to the next.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from daemon.cost.curve import Curve, Surface
from daemon.cost.work import StepWork
from daemon.lab.profiler.least_squares import Float64

Knots = tuple[float, ...]


def weights(knots: Knots, at: float) -> Float64:
    """The share of each knot's value in a curve's value at `at`, as `Curve` interpolates."""
    found = np.zeros(len(knots))
    last = len(knots) - 1
    if last == 0 or at <= knots[0]:
        found[0] = 1.0
        return found
    left = min(bisect_right(knots, at), last) - 1
    share = (at - knots[left]) / (knots[left + 1] - knots[left])
    found[left], found[left + 1] = 1.0 - share, share
    return found


@dataclass(frozen=True, slots=True)
class Terms:
    """The knots of every term."""

    tokens: Knots
    samples: Knots
    decodes: Knots
    contexts: Knots
    counts: Knots  # tokens of a chunk
    befores: Knots  # tokens before it

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Unknowns of tokens, samples, decode and prefill, in this order."""
        decode = len(self.decodes) * len(self.contexts)
        prefill = len(self.counts) * len(self.befores)
        return len(self.tokens), len(self.samples) - 1, decode, prefill

    def row(self, work: StepWork) -> Float64:
        """The step's time as weights of the unknowns."""
        prefill = np.zeros((len(self.counts), len(self.befores)))
        for count, before in work.chunks:
            prefill += self._cell(self.counts, self.befores, count, before)
        decode = np.zeros((len(self.decodes), len(self.contexts)))
        if work.num_decodes:
            context = work.decode_context / work.num_decodes
            decode = self._cell(self.decodes, self.contexts, work.num_decodes, context)
        tokens = weights(self.tokens, work.num_tokens)
        samples = _of_rises(weights(self.samples, work.num_samples))[1:]
        return np.concatenate([tokens, samples, decode.ravel(), prefill.ravel()])

    def wishes(self, step_s: Curve, straight: tuple[float, float], small: float) -> Float64:
        """Rows whose product with the unknowns should be zero, in shares of a step of `step_s`.

        Curves should be straight, with strength `straight` for (tokens, surfaces); and attention
        with hardly any context should cost little: nothing else separates it from the tokens'
        share.
        """
        offsets = np.cumsum((0, *self.sizes))
        width = int(offsets[-1])
        found = [straight[0] * _bends(self.tokens, step_s, 0, 1, width)]
        slopes = _rises(self.samples, int(offsets[1]) - 1, width)
        scales = np.array([step_s(knot) for knot in self.samples[2:]])
        found.append(straight[0] * slopes / scales[:, None])
        for start, lines, along in (
            (int(offsets[2]), self.decodes, self.contexts),
            (int(offsets[3]), self.counts, self.befores),
        ):
            across = len(along)
            for column in range(across):
                bends = _bends(lines, step_s, start + column, across, width)
                found.append(straight[1] * bends)
            for number, line in enumerate(lines):
                first = start + number * across
                found.append(_rises(along, first, width) * (straight[1] / step_s(line)))
                found.append(np.eye(1, width, first) * (small / step_s(line)))
        return np.concatenate(found)

    def curves(self, unknowns: Float64) -> tuple[Curve, Curve, Surface, Surface]:
        """Tokens, samples, decode and prefill from the unknowns."""
        cuts = np.cumsum(self.sizes)[:-1]
        tokens, samples, decode, prefill = np.split(unknowns, cuts)
        return (
            Curve(self.tokens, _values(tokens)),
            Curve(self.samples, (0.0, *_values(np.cumsum(samples)))),
            _surface(self.decodes, self.contexts, decode),
            _surface(self.counts, self.befores, prefill),
        )

    @staticmethod
    def _cell(lines: Knots, along: Knots, line: float, at: float) -> Float64:
        """Weights of a surface's rises."""
        return np.outer(weights(lines, line), _of_rises(weights(along, at)))


def _of_rises(shares: Float64) -> Float64:
    """Weights of values as weights of rises: a value is the sum of all rises up to it."""
    return np.cumsum(shares[::-1])[::-1]


def _bends(lines: Knots, step_s: Curve, start: int, stride: int, width: int) -> Float64:
    """For each inner knot: its value less the straight line between its neighbours."""
    rows = np.zeros((max(0, len(lines) - 2), width))
    for place in range(1, len(lines) - 1):
        before, here, after = lines[place - 1 : place + 2]
        share = (here - before) / (after - before)
        scale = 1.0 / step_s(here)
        at = start + place * stride
        rows[place - 1, at] = scale
        rows[place - 1, at - stride] = -scale * (1.0 - share)
        rows[place - 1, at + stride] = -scale * share
    return rows


def _rises(along: Knots, start: int, width: int) -> Float64:
    """For each inner stretch of a line: its rise less a linear continuation of the stretch before.

    With L knots there are rows 0..L-3; row k compares the rises to knots k + 1 and k + 2.
    """
    rows = np.zeros((max(0, len(along) - 2), width))
    for place in range(2, len(along)):
        stretch = along[place] - along[place - 1]
        rows[place - 2, start + place] = 1.0
        rows[place - 2, start + place - 1] = -stretch / (along[place - 1] - along[place - 2])
    return rows


def _surface(lines: Knots, along: Knots, rises: Float64) -> Surface:
    values = np.cumsum(rises.reshape(len(lines), len(along)), axis=1)
    return Surface(lines, along, tuple(_values(line) for line in values))


def _values(numbers: Float64) -> tuple[float, ...]:
    return tuple(float(f"{number:.5g}") for number in numbers)
