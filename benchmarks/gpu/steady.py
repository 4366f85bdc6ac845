"""Steps launched ahead, as the worker does it: what a step takes when nothing is waited for."""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from daemon.engine.protocol import Plan
from daemon.engine.step import Begun, Engine

DEPTH = 2
"""Plans in flight, as the Core keeps them where steps are short."""


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
        flying.append(engine.begin(plan, 0.0))
        if len(flying) == DEPTH:
            flying.popleft().finish()
            times.append(time.perf_counter())
    while flying:
        flying.popleft().finish()
        times.append(time.perf_counter())
    return times


def steady(engine: Engine, plans: Sequence[Plan], warm: int) -> Steady:
    """The steps after the first `warm` ones, and what the last two take the device."""
    *timed, before, last = plans
    times = answer_times_s(engine, timed)
    # The answers after the last launch come without another one beside them.
    times = times[warm : len(times) - DEPTH + 1]
    gaps = [after - earlier for earlier, after in itertools.pairwise(times)]
    step_s = (times[-1] - times[0]) / len(gaps)
    return Steady(step_s, statistics.median(gaps), _busy_s(engine, before, last))


def _busy_s(engine: Engine, before: Plan, last: Plan) -> float:
    """The second of two steps that were launched while the device was still busy with others."""
    device = engine.cache.blocks.device
    if device.type != "cuda":
        for plan in (before, last):
            engine.begin(plan, 0.0).finish()
        return 0.0
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device=device)
    out = torch.empty_like(square)
    torch.cuda.synchronize(device)
    for _ in range(20):  # about 30 ms, in which both steps are launched
        torch.mm(square, square, out=out)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    flying = [engine.begin(before, 0.0)]
    events[0].record()
    flying.append(engine.begin(last, 0.0))
    events[1].record()
    for begun in flying:
        begun.finish()
    torch.cuda.synchronize(device)
    return events[0].elapsed_time(events[1]) / 1e3
