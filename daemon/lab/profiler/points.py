"""Measured steps: their work, and the time of each repeat."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from daemon.cost.work import StepWork
from daemon.lab.profiler.experiments import Kind

_DISTURBED = 1.25  # times the fastest: such a measurement was disturbed by something else
_SIGMA_OF_MAD = 1.4826  # standard deviation of a normal law over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of step, measured at least once."""

    kind: Kind
    work: StepWork
    samples_s: tuple[float, ...]

    @property
    def calm_s(self) -> tuple[float, ...]:
        """The measurements that other work on the machine did not disturb."""
        limit_s = _DISTURBED * min(self.samples_s)
        return tuple(sample for sample in self.samples_s if sample <= limit_s)

    @property
    def elapsed_s(self) -> float:
        """The median of the calm measurements."""
        return median(self.calm_s)


def disturbed_share(points: list[Point]) -> float:
    """The share of all measurements that were disturbed."""
    calm = sum(len(point.calm_s) for point in points)
    return 1.0 - calm / sum(len(point.samples_s) for point in points)


def spread(logs: list[float]) -> float:
    """Standard deviation of logarithms, robust against a few outliers; 0 of none."""
    if not logs:
        return 0.0
    values = np.asarray(logs)
    return float(_SIGMA_OF_MAD * np.median(np.abs(values - np.median(values))))


def repeat_sigma(points: list[Point]) -> float:
    """The variation of equal steps: the spread of log(measured / its median)."""
    return spread(
        [
            float(np.log(sample / point.elapsed_s))
            for point in points
            if len(point.calm_s) > 1
            for sample in point.calm_s
        ]
    )
