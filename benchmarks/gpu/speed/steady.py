"""Steps launched ahead, as the worker does it: what a step takes when nothing is waited for."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.gpu.timing import keep_busy
from daemon.engine.step.step import Begun, Engine
from daemon.protocol.worker import Plan

LAUNCHES_S = 0.05
"""Long enough for the host to launch two steps, one of them kernel by kernel."""

DEPTH = 2
"""Plans in flight, as the Core keeps them where steps are short."""

WARM, PAIRS = 8, 3
EXTRA = WARM + 2 * PAIRS + DEPTH
"""Plans beside those that are timed: some before, pairs of them and the last answers behind."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Times of steps in a row, in seconds."""

    step_s: float  # wall time over steps, from the first answer to the last
    median_s: float  # between two answers
    busy_s: float  # a step as the device sees it, with no gap before it; 0 where not measured

    @property
    def idle_share(self) -> float:
        """The share of the time between two answers in which the device had nothing to do."""
        return max(0.0, 1 - self.busy_s / self.step_s)

    def raw(self) -> dict[str, float]:
        """For the results."""
        return {"step_s": self.step_s, "median_s": self.median_s, "busy_s": self.busy_s}


def answer_times_s(engine: Engine, plans: Iterable[Plan]) -> list[float]:
    """When each plan was answered, with DEPTH of them in flight."""
    flying: deque[Begun] = deque()
    times = []
    for plan in plans:
        flying.append(engine.begin(plan))
        if len(flying) == DEPTH:
            flying.popleft().finish()
            times.append(time.perf_counter())
    while flying:
        flying.popleft().finish()
        times.append(time.perf_counter())
    return times


def steady(engine: Engine, plans: Sequence[Plan]) -> Steady:
    """All steps but EXTRA of them in a row, then pairs of them as the device sees them."""
    timed, pairs = plans[: -2 * PAIRS], plans[-2 * PAIRS :]
    times = answer_times_s(engine, timed)
    # The last answers come without another step beside theirs.
    times = times[WARM : len(times) - DEPTH + 1]
    gaps = [after - earlier for earlier, after in itertools.pairwise(times)]
    busy_s = [_busy_s(engine, *pairs[index : index + 2]) for index in range(0, 2 * PAIRS, 2)]
    step_s = (times[-1] - times[0]) / len(gaps)
    return Steady(step_s, statistics.median(gaps), statistics.median(busy_s))


def _busy_s(engine: Engine, before: Plan, last: Plan) -> float:
    """The second of two steps that were launched while the device was still busy with others."""
    device = engine.cache.blocks.device
    if device.type != "cuda":
        for plan in (before, last):
            engine.begin(plan).finish()
        return 0.0
    torch.cuda.synchronize(device)
    keep_busy(LAUNCHES_S)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    flying = [engine.begin(before)]
    events[0].record()
    flying.append(engine.begin(last))
    events[1].record()
    for begun in flying:
        begun.finish()
    torch.cuda.synchronize(device)
    return events[0].elapsed_time(events[1]) / 1e3
