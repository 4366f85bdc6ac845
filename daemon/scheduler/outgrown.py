"""Outgrown: how far answers go beyond what is kept for them, as the latest answers show.

What the running answers hold beyond their padded lengths is kept for them, at most 5 % of the
pool; with true predictions it is one block.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from daemon.wire.columns import Int32

DEVIATIONS = 2.0
"""The sum over many is nearly normal: it is seldom (2 %) more than so many deviations higher."""

NEARLY_ALL = 0.95
"""The share of answers that end within the margin."""


class Outgrown(NamedTuple):
    """All of it in shares of what is kept for an answer.

    What one that runs holds beyond that, and its square, are means over all steps: each answer
    counts for as many as it takes, and holds more only in its last ones.
    """

    beyond: float
    square: float
    margin: float  # by which nearly all end at the latest

    def num_tokens(self, kept: Int32) -> int:
        """What those that run hold together beyond what is `kept` for each, seldom more."""
        tokens = kept.astype(np.float64)
        variance = max(0.0, self.square - self.beyond**2) * float(tokens @ tokens)
        total = self.beyond * float(np.add.reduce(tokens))
        return math.ceil(total + DEVIATIONS * math.sqrt(variance))


PRIOR = Outgrown(0.01, 0.01**2, 0.15)
"""Before enough answers have ended; the margin is the paper's buffer b (EcoServe, section 3.4)."""


def outgrown(lengths: Sequence[float], share: float) -> Outgrown:
    """Of answers that had these lengths, in ascending order, where the length is kept for each that
    such a share of them does not exceed.
    """
    num = len(lengths)
    kept = lengths[min(num - 1, int(share * num))]
    if kept <= 0.0:
        return PRIOR
    ratios = np.array(lengths) / kept
    over = np.maximum(ratios - 1.0, 0.0)
    squares = over * over
    steps = float(np.add.reduce(ratios)) / num
    return Outgrown(
        float(np.add.reduce(squares)) / num / (2.0 * steps),
        float(np.add.reduce(squares * over)) / num / (3.0 * steps),
        float(over[min(num - 1, int(NEARLY_ALL * num))]),
    )
