"""Calibration: from a predictor's guess to quantiles, by the errors of its recent guesses."""

import math
from collections import defaultdict

from daemon.length_models.prediction import Prediction
from daemon.length_models.recent import Recent

TAIL = 0.1
"""The chance that an answer is longer than the high quantile."""


class Calibration:
    """Ratios of truth to guess over recent requests: split conformal prediction.

    Short guesses are off by larger factors than long ones, so ratios are kept by the guess's power
    of two; a class counts once it has `LEAST` of them, before that all ratios do, and before there
    are enough at all, the guess stands and may be wrong by a factor of `FIRST`.
    """

    LEAST = 32
    FIRST = 4.0

    def __init__(self, window: int = 1024, class_window: int = 256) -> None:
        self._all = Recent(window)
        self._classes: defaultdict[int, Recent] = defaultdict(lambda: Recent(class_window))

    def observe(self, guess: float, num_tokens: int, cut: bool = False) -> None:
        """Learn that an answer with the guess `guess` (> 0) had `num_tokens`; `cut`: at least that.

        The guess must have been made before the answer was known.
        """
        ratio = num_tokens / guess
        self._all.add(ratio, cut)
        self._classes[_class_of(guess)].add(ratio, cut)

    def band(self, guess: float, max_tokens: int = 0) -> Prediction:
        """The median and the high quantile; none is over `max_tokens`, if that is known (> 0)."""
        known = self._classes.get(_class_of(guess))
        ratios = self._all if known is None or len(known) < self.LEAST else known
        if len(ratios) < self.LEAST:
            return ordered(guess, guess * self.FIRST, max_tokens)
        middle = guess * ratios.middle(beyond=1.0)
        return ordered(middle, guess * ratios.upper(TAIL, beyond=self.FIRST), max_tokens)


def ordered(middle: float, high: float, max_tokens: int = 0) -> Prediction:
    """Two quantiles as whole tokens, at least 1, ascending, at most `max_tokens` if that is > 0."""
    most = max_tokens if max_tokens > 0 else math.inf
    centre = max(1, round(min(middle, most)))
    return Prediction(middle=centre, high=max(centre, round(min(high, most))))


def _class_of(guess: float) -> int:
    return int(guess).bit_length()
