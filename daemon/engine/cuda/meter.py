"""Measures implementations of a product on this device, and checks their results."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from triton.errors import TritonError

from daemon.engine.cuda.product_implementations import Implementation, Library

log = logging.getLogger(__name__)

TOLERANCE = 0.02
"""Largest difference from the plain result, relative to the largest number of that."""
_LIBRARY = Library()
_SLEEP_CYCLES = 50_000
"""Cycles to sleep for each call; doubled when they do not suffice for the host to queue it."""
_LONGEST_SLEEP_CYCLES = 10_000_000
_WAKE_S = 0.05


@dataclass(frozen=True, slots=True)
class ProductCall:
    """A product, and the kernel in front of it, which also decides how early it can begin."""

    way: Implementation
    states: torch.Tensor
    weight: Any
    bias: torch.Tensor | None
    before: Callable[[], object] | None = None

    def __call__(self) -> None:
        """Queue both."""
        if self.before is not None:
            self.before()
        self.way(self.states, self.weight, self.bias)


class Meter(Protocol):
    """The measurements that `choose_products` needs of a device."""

    def usable(
        self,
        way: Implementation,
        states: torch.Tensor,
        weight: Any,
        bias: torch.Tensor | None,
        plain: Implementation = _LIBRARY,
    ) -> bool:
        """Whether an implementation runs here and agrees with `plain`; afterwards it is warm."""

    def seconds(self, calls: Sequence[ProductCall]) -> float:
        """The time that each of several calls takes, one after another."""


class CudaMeter:
    """Measures by the device's own events, while the host is ahead of it."""

    def __init__(self) -> None:
        self._cycles = _SLEEP_CYCLES
        self._awake = False

    def usable(
        self,
        way: Implementation,
        states: torch.Tensor,
        weight: Any,
        bias: torch.Tensor | None,
        plain: Implementation = _LIBRARY,
    ) -> bool:
        """See `Meter`; waits for the device."""
        expected = plain(states, weight, bias)
        try:
            # In place: of logits of many rows there may not be room for many copies.
            difference = way(states, weight, bias).sub_(expected).abs_().max()
        except TritonError as error:
            log.warning("%s is not used: %s", way.name, error)
            return False
        relative = float(difference / expected.abs_().max())
        # Written so that NaN is not usable.
        if relative <= TOLERANCE:
            return True
        log.warning("%s is not used: its result differs by %.1e", way.name, relative)
        return False

    def seconds(self, calls: Sequence[ProductCall]) -> float:
        """See `Meter`. The device sleeps until all calls are queued, so that none waits for one."""
        if not self._awake:
            self._wake(calls)
        while True:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._cycles * len(calls))
            began.record()
            for call in calls:
                call()
            ended.record()
            slept_enough = not began.query()
            ended.synchronize()
            if slept_enough or self._cycles >= _LONGEST_SLEEP_CYCLES:
                return began.elapsed_time(ended) / 1e3 / len(calls)
            self._cycles *= 2

    def _wake(self, calls: Sequence[ProductCall]) -> None:
        """Work until the device's clocks have left their idle state."""
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < _WAKE_S:
            for call in calls:
                call()
            torch.cuda.synchronize()
        self._awake = True
