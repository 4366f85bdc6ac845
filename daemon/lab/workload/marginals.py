"""Distributions of one length: a quantile table, or a lognormal between published bounds.

Each maps standard normal scores to lengths, so that two of them can be correlated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from daemon.lab.workload.workload import Float64

Marginal = Callable[[Float64], Float64]
"""From standard normal scores [N] to lengths [N], not yet rounded."""

_share_below = np.vectorize(NormalDist().cdf, otypes=[np.float64])


@dataclass(frozen=True)
class Quantiles:
    """Straight lines between quantiles. Two values `at` the same share make a jump."""

    at: tuple[float, ...]  # from 0 to 1, never falls
    value: tuple[float, ...]  # never falls

    def __call__(self, scores: Float64) -> Float64:
        """Lengths [N] of normal scores [N]."""
        shares: Float64 = _share_below(scores)
        return np.interp(shares, self.at, self.value)


@dataclass(frozen=True)
class Bounded:
    """A lognormal fitted to the average, the bounds and the size of a sample, and clipped to them.

    The distance to the nearer bound is lognormal: its mean follows from the average, its spread
    from the farther bound being where the most extreme of `count` requests is expected.
    """

    average: float
    least: float
    most: float
    count: int  # requests in the sample

    def __call__(self, scores: Float64) -> Float64:
        """Lengths [N] of normal scores [N]."""
        from_least = self.average - self.least <= self.most - self.average
        base, sign = (self.least, 1.0) if from_least else (self.most, -1.0)
        mu, sigma = self.fit()
        return np.clip(base + sign * np.exp(mu + sigma * sign * scores), self.least, self.most)

    def fit(self) -> tuple[float, float]:
        """Mean and standard deviation of the distance's logarithm.

        From log(mean) = mu + sigma^2 / 2 and log(farthest) = mu + sigma z, where z is the normal
        quantile 1 - 1 / count.
        """
        log_mean = math.log(min(self.average - self.least, self.most - self.average))
        log_farthest = math.log(self.most - self.least)
        z = NormalDist().inv_cdf(1 - 1 / self.count)
        sigma = z - math.sqrt(z * z - 2 * (log_farthest - log_mean))
        return log_mean - sigma * sigma / 2, sigma


def whole(lengths: Float64) -> Float64:
    """Lengths as whole tokens, at least one."""
    return np.maximum(np.rint(lengths), 1.0)
