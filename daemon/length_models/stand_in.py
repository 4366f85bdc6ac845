"""A stand-in for a predictor that reads prompts, where a trace has lengths and no text.

Its order of answers is as right as the real predictor's was on real answers, and its quantiles are
calibrated as that one's are. Truth and what the stand-in sees of it are normal scores of lengths
with a stated correlation; from what it sees it says the quantiles of lengths like those that ended.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from statistics import NormalDist

from daemon.length_models.calibration import ordered
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.learned import Learned
from daemon.length_models.noisy import TAIL_Z
from daemon.length_models.prediction import Asked, Prediction

FEATURES_RANK = 0.65
"""The rank correlation with which the error is that of `features` on real answers, a third of which
are cut at one length (`python -m benchmarks.predictors --kinds features,stand-in`)."""

_NORMAL = NormalDist()


class StandIn:
    """Predicts with a stated rank correlation; the conditional mean until enough has ended."""

    WINDOW = 4096

    def __init__(self, rank: float = FEATURES_RANK) -> None:
        """`rank`: the rank correlation of what it sees with the truth."""
        self.declared = f"stand-in (for features, without text; rank correlation {rank:g})"
        self._share = 2.0 * math.sin(math.pi * rank / 6.0)  # Pearson's of normal scores
        self._rest = math.sqrt(1.0 - self._share**2)
        self._mean = ConditionalMean()
        self._newest: deque[int] = deque()
        self._lengths: list[int] = []  # the same, sorted

    def predict(self, asked: Asked) -> Prediction:
        """Quantiles of the lengths that what it sees of the truth leaves possible."""
        if len(self._lengths) < Learned.LEAST:
            return self._mean.predict(asked)
        seen = self._share * self._score(asked.truth) + self._rest * asked.chance
        middle = self._share * seen
        high = self._quantile(middle + TAIL_Z * self._rest)
        return ordered(self._quantile(middle), high, asked.max_tokens)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Count an answer among those that ended."""
        self._mean.observe(asked, num_tokens)
        self._newest.append(num_tokens)
        insort(self._lengths, num_tokens)
        if len(self._newest) > self.WINDOW:
            del self._lengths[bisect_left(self._lengths, self._newest.popleft())]

    def _score(self, num_tokens: int) -> float:
        """The normal score of a length among those that ended."""
        known = self._lengths
        place = (bisect_left(known, num_tokens) + bisect_right(known, num_tokens)) / 2.0
        return _NORMAL.inv_cdf((place + 0.5) / (len(known) + 1.0))

    def _quantile(self, score: float) -> int:
        """The length with this normal score."""
        known = self._lengths
        return known[min(len(known) - 1, int(_NORMAL.cdf(score) * len(known)))]
