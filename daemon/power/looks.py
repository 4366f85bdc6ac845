"""Looks: an instance and its card over a stretch of time: pace, energy, tokens, the cap."""

import math
from collections import Counter
from typing import NamedTuple

_GROWTH = math.log(1.01)
"""Times of steps are counted in buckets: a percentile is wrong by 0.5 % at most."""
_SHORTEST_S = 1e-6
NEAR = 0.97
"""A card that does not report whether its limit binds counts as bound at this share of it."""


class CardLimits(NamedTuple):
    """The power limits that a card accepts."""

    min_watts: float
    max_watts: float
    default_watts: float

    def clamped(self, watts: float) -> float:
        """The nearest limit that the card can have."""
        return min(max(watts, self.min_watts), self.max_watts)


class PowerSample(NamedTuple):
    """A card at one moment; None is what it does not report."""

    watts: float
    cap_watts: float
    energy_j: float | None  # of a counter that never falls, unless its driver begins anew
    binding: bool | None

    @property
    def binds(self) -> bool:
        """Whether the card is slower because of its limit, as far as that is known."""
        if self.binding is None:
            return self.watts >= NEAR * self.cap_watts
        return self.binding


class PowerLook(NamedTuple):
    """One stretch of time."""

    span_s: float
    num_steps: int  # that decoded tokens of answers
    num_decodes: int  # tokens of them
    num_tokens: int  # that went through the model in all steps
    pace_s: float  # 0.95 quantile of these steps' times; 0: there was none
    energy_j: float
    most_watts: float
    binding_share: float  # of the time

    @property
    def joules_per_token(self) -> float | None:
        """Energy over tokens; None where there were none."""
        return self.energy_j / self.num_tokens if self.num_tokens else None

    @property
    def watts(self) -> float:
        """The mean power drawn."""
        return self.energy_j / self.span_s if self.span_s else 0.0

    @property
    def batch(self) -> float:
        """Mean tokens of answers in a step."""
        return self.num_decodes / self.num_steps if self.num_steps else 0.0

    @property
    def decodes_per_s(self) -> float:
        """Tokens of answers in a second."""
        return self.num_decodes / self.span_s if self.span_s else 0.0


class PowerWindow:
    """Gathers steps and samples into a look."""

    def __init__(self) -> None:
        self.begin(0.0, None)

    def begin(self, now: float, sample: PowerSample | None) -> None:
        """Forget everything; `sample` is how the card is now, None: not known."""
        self._began_s = self._newest_s = now
        self._newest = sample
        self._steps: Counter[int] = Counter()
        self._num_decodes = self._num_tokens = 0
        self._energy_j = self._binding_s = 0.0
        self._most_watts = 0.0

    def step(self, elapsed_s: float, num_decodes: int, num_tokens: int) -> None:
        """Count a step that answered."""
        self._num_tokens += num_tokens
        if num_decodes:
            self._num_decodes += num_decodes
            self._steps[round(math.log(max(elapsed_s, _SHORTEST_S)) / _GROWTH)] += 1

    def sample(self, now: float, sample: PowerSample) -> float:
        """Take a reading of the card; returns the energy since the one before, in joules."""
        span_s = max(0.0, now - self._newest_s)
        before = self._newest
        spent_j = sample.watts * span_s if before is not None else 0.0
        if before is not None and before.energy_j is not None and sample.energy_j is not None:
            counted_j = sample.energy_j - before.energy_j
            spent_j = counted_j if counted_j >= 0.0 else spent_j
        if before is None:
            self._began_s = now
        self._energy_j += spent_j
        self._binding_s += span_s if sample.binds and before is not None else 0.0
        self._most_watts = max(self._most_watts, sample.watts)
        self._newest, self._newest_s = sample, now
        return spent_j

    @property
    def newest(self) -> PowerSample | None:
        """The newest reading of the card."""
        return self._newest

    @property
    def look(self) -> PowerLook:
        """The look gathered until the newest sample."""
        span_s = self._newest_s - self._began_s
        return PowerLook(
            span_s=span_s,
            num_steps=self._steps.total(),
            num_decodes=self._num_decodes,
            num_tokens=self._num_tokens,
            pace_s=_percentile_s(self._steps, 0.95),
            energy_j=self._energy_j,
            most_watts=self._most_watts,
            binding_share=self._binding_s / span_s if span_s else 0.0,
        )


def _percentile_s(steps: Counter[int], share: float) -> float:
    left = math.ceil(share * steps.total())
    for place in sorted(steps):
        left -= steps[place]
        if left <= 0:
            return math.exp(place * _GROWTH)
    return 0.0
