"""Arrival processes: pure functions from a count, a rate and a generator to times.

The run starts at 0. Every process but `closed` is a sum of gaps, and the first request comes after
a gap of its own: n requests at `rate` take n / rate seconds on average. The same generator at twice
the rate gives the same times, halved.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from daemon.base.nearest import not_one_of
from daemon.lab.workload.workload import Float64, WorkloadError

Process = Callable[[int, float, np.random.Generator], Float64]

PROCESSES: dict[str, str] = {
    "poisson": "independent exponential gaps",
    "gamma:CV": "gamma gaps with that coefficient of variation (FastServe, Figure 8: 4)",
    "closed": "all requests at the start; no rate",
    "uniform": "equal gaps",
    "burst:SIZE": "groups of SIZE at once, the groups Poisson",
    "diurnal:DEPTH": "Poisson whose rate swings by DEPTH (0 to 1) over one compressed day",
}
"""The valid forms of `arrivals`, and their meanings."""

_BISECTIONS = 60  # halvings of a unit interval: below a double's resolution


def poisson(count: int, rate: float, rng: np.random.Generator) -> Float64:
    """[count] times of a Poisson process of `rate` requests a second."""
    return np.cumsum(rng.standard_exponential(count)) / rate


def gamma(cv: float, count: int, rate: float, rng: np.random.Generator) -> Float64:
    """[count] times with gamma gaps of mean 1 / `rate` and coefficient of variation `cv`."""
    return np.cumsum(rng.standard_gamma(1 / cv**2, count)) * (cv**2 / rate)


def closed(count: int, _rate: float, _rng: np.random.Generator) -> Float64:
    """[count] zeros: all requests come at the start."""
    return np.zeros(count)


def uniform(count: int, rate: float, _rng: np.random.Generator) -> Float64:
    """[count] times 1 / `rate` apart."""
    return np.arange(1, count + 1) / rate


def burst(size: float, count: int, rate: float, rng: np.random.Generator) -> Float64:
    """[count] times in groups of `size` at once; the last group may be smaller."""
    groups = -(-count // int(size))
    return np.repeat(poisson(groups, rate / size, rng), int(size))[:count]


def diurnal(depth: float, count: int, rate: float, rng: np.random.Generator) -> Float64:
    """[count] times of a Poisson process of rate(t) = rate * (1 - depth * cos(2 pi t / day)).

    The run covers exactly one day, from night to night: the last request ends it. Times come by
    inversion of the integrated rate, day * (x - depth * sin(2 pi x) / (2 pi)) at x = t / day.
    """
    even_s = poisson(count, rate, rng)
    day_s = even_s[-1]
    low, high = np.zeros(count), np.ones(count)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        early = middle - depth * np.sin(2 * np.pi * middle) / (2 * np.pi) < even_s / day_s
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    times: Float64 = np.maximum.accumulate(high * day_s)
    return times


def parse_arrivals(text: str) -> Process:
    """The process that a text such as `gamma:4` names. Raises WorkloadError."""
    name, colon, argument = text.partition(":")
    if name in _PLAIN and not colon:
        return _PLAIN[name]
    if name not in _SHAPED:
        raise WorkloadError(f"arrivals: {not_one_of(text, PROCESSES)}")
    shaped, least, most = _SHAPED[name]
    try:
        value = float(argument)
    except ValueError:
        value = float("nan")
    if not least <= value <= most or (name == "burst" and not value.is_integer()):
        kind = "a whole number" if name == "burst" else "a number"
        raise WorkloadError(f"arrivals: {name} needs {kind} from {least} to {most}, got {text!r}")
    return partial(shaped, value)


def draw_arrivals(text: str, count: int, rate: float, rng: np.random.Generator) -> Float64:
    """[count] times of the process that `text` names. Raises WorkloadError."""
    process = parse_arrivals(text)
    if process is not closed and not 0 < rate < float("inf"):
        raise WorkloadError(f"rate: {text} arrivals need a rate above 0 requests/s, got {rate}")
    return process(count, rate, rng)


_PLAIN: dict[str, Process] = {"poisson": poisson, "closed": closed, "uniform": uniform}

_SHAPED: dict[str, tuple[Callable[..., Float64], float, float]] = {
    "gamma": (gamma, 0.001, 1000),
    "burst": (burst, 1, 1_000_000),
    "diurnal": (diurnal, 0, 1),
}
"""Processes with one number: the function, and the number's range."""
