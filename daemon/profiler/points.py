"""Measured steps: what they computed, and how long they took each time."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from daemon.cost.work import StepWork
from daemon.profiler.experiments import Kind

_SIGMA_OF_MAD = 1.4826  # standard deviation of a normal law over its median absolute deviation


@dataclass(frozen=True, slots=True)
class Point:
    """One kind of step, measured at least once."""

    kind: Kind
    work: StepWork
    samples_s: tuple[float, ...]

    @property
    def elapsed_s(self) -> float:
        """The median of its measurements."""
        return median(self.samples_s)


def spread(logs: list[float]) -> float:
    """Standard deviation of logarithms, estimated so that a few hiccups do not count; 0 of none."""
    if not logs:
        return 0.0
    values = np.asarray(logs)
    return float(_SIGMA_OF_MAD * np.median(np.abs(values - np.median(values))))


def repeat_sigma(points: list[Point]) -> float:
    """How much one and the same step varies: the spread of log(measured / its median)."""
    return spread(
        [
            float(np.log(sample / point.elapsed_s))
            for point in points
            if len(point.samples_s) > 2
            for sample in point.samples_s
        ]
    )
