"""Decisions to change roles: rare, and taken back where a split does worse than mixed would.

Each load gets one change, in its first minute: `LoadWindow` tells when the load changed. A split
has to be better than mixed by a margin and to meet most SLOs; ties stay mixed.

Queues of a busy machine swing within seconds, and a rule that follows them flips back and forth. To
try each split for a while would cost missed SLOs; so splits are forecast, and few are tried.
"""

import math
from collections.abc import Sequence

import msgspec

from daemon.roles.forecast import Forecast, Split

MIXED = str(Split(0, 1))

FIRST_S, LAST_S = 20.0, 60.0
"""The span of a load's life in which a change may come."""
ENOUGH, FEW = 40, 15
"""Requests that are enough to know a load: before LAST_S, and afterwards."""
AGREED = 2
"""Looks in a row that must want the same kind of change."""
MARGIN, LEAST_MARGIN, OF_MISSES = 0.05, 0.02, 0.4
"""The attainment that a split must gain over mixed or another split: MARGIN, or less where that is
a good part of what mixed misses, as forecasts near full attainment err by little."""
TIE = 0.01
"""A split that gains no more than this over mixed gives way to it; splits within it are alike."""
FLOOR = 0.6
"""The least attainment of a split that is worth a change."""
MEASURED = 40
"""Answers that are enough to measure a choice."""
EXPECTED = 100
"""The weight, in answers, of the forecast of mixed beside measured answers: few have ended when a
split is chosen, and the first of them came when the load was young. Splits are compared with the
forecast of mixed, or with both together where that is less.
"""
POOR = 0.9
"""Attainment of mixed below which a late change may come, as the forecast was wrong."""
WORSE = 0.03
FIRST_REST_S, MOST_REST_S = 300.0, 4800.0
"""The rest after a split that was worse than mixed, in which none is tried; it doubles each time.
"""
SETTLE_S = 5.0
"""Requests that arrive sooner after a change are not counted for it."""


class KeptCount(msgspec.Struct, array_like=True):
    """The number of ended answers, and of those that met both SLOs."""

    num: int = 0
    kept: int = 0

    def add(self, kept: bool) -> None:
        """Count an answer."""
        self.num += 1
        self.kept += kept

    @property
    def share(self) -> float:
        """The share that met both SLOs; 1 before there are any."""
        return self.kept / self.num if self.num else 1.0

    @property
    def tells(self) -> bool:
        """Whether there are enough answers to measure by."""
        return self.num >= MEASURED


class Decided(msgspec.Struct, frozen=True):
    """The outcome of a look: the choice from now on, and the reason."""

    choice: str
    why: str


class DeciderState(msgspec.Struct, array_like=True):
    """All that a decider knows."""

    since_s: float = -1.0  # start of the load that it looks at
    changed_s: float = -1e9  # when it last chose anew
    is_settled: bool = False  # this load has had its change, or needs none
    had_late: bool = False  # and its late change, or its split was given up
    wanted: str = ""  # kind of change that the last looks wanted
    num_wanted: int = 0
    expected: float = -1.0  # attainment of mixed under this load; -1: no forecast yet
    mixed: KeptCount = msgspec.field(default_factory=KeptCount)  # under this load
    split: KeptCount = msgspec.field(default_factory=KeptCount)
    rest_until_s: float = -1.0
    rest_s: float = FIRST_REST_S


class Decider:
    """Chooses by forecasts and by measured answers."""

    def __init__(self, state: DeciderState | None = None) -> None:
        self.state = state or DeciderState()

    def ended(self, arrived_s: float, kept: bool, choice: str) -> None:
        """An answer has ended, or was refused, under a choice."""
        state = self.state
        if arrived_s >= max(state.since_s, state.changed_s + SETTLE_S):
            (state.mixed if choice == MIXED else state.split).add(kept)

    def measured(self, choice: str) -> KeptCount:
        """The measured answers of the choice in force under this load."""
        return self.state.mixed if choice == MIXED else self.state.split

    def begin(self, since_s: float) -> None:
        """Begin a new load at `since_s`."""
        state = self.state
        state.since_s, state.is_settled, state.had_late = since_s, False, False
        state.wanted, state.num_wanted, state.expected = "", 0, -1.0
        state.mixed, state.split = KeptCount(), KeptCount()

    def enough(self, now: float, num_requests: int) -> bool:
        """Whether `num_requests` are enough to know this load."""
        age_s = now - self.state.since_s
        return age_s >= FIRST_S and num_requests >= (ENOUGH if age_s < LAST_S else FEW)

    def without(self, now: float, present: str, forecasts: Sequence[Forecast]) -> Decided | None:
        """The outcome of a look that needs no new forecasts; None: it needs them. `forecasts`:
        those of the last look that had some.
        """
        state = self.state
        if state.expected < 0.0:
            return None
        if fallen := self._fallen(now, present):
            return fallen
        if state.is_settled and not self._may_be_late(present):
            return Decided(present, _reason(forecasts, "this load is decided"))
        if now < state.rest_until_s:
            why = f"no split is tried for another {state.rest_until_s - now:.0f} s"
            return Decided(present or self.mix(now), why)
        return None

    def look(
        self, now: float, present: str, forecasts: Sequence[Forecast], cost: float = 0.0
    ) -> Decided:
        """Choose among forecasts, of which the first is that of mixed. `cost` is the cost of
        migrating running sequences, as a share of the answers to come.
        """
        state = self.state
        mixed = forecasts[0]
        if state.expected < 0.0:
            state.expected = mixed.attainment
        if decided := self.without(now, present, forecasts):
            return decided
        best = _best(forecasts)
        late = self._may_be_late(present)
        foretold = state.mixed.share if late else mixed.attainment
        expected = min(foretold, self._mixed_keeps(foretold))
        here = next((forecast for forecast in forecasts if forecast.choice == present), mixed)
        margin = min(MARGIN, max(LEAST_MARGIN, OF_MISSES * (1.0 - expected)))
        wanted, why = self._wanted(here, best, expected, margin + cost)
        if wanted == present:
            self._want("")
            state.is_settled |= now - state.since_s >= LAST_S
            return Decided(present, _reason(forecasts, why))
        self._want("mixed" if wanted == MIXED else "split")
        if state.num_wanted < AGREED and now - state.since_s < LAST_S:
            return Decided(present, _reason(forecasts, f"{wanted} is thought of"))
        state.had_late |= state.is_settled
        state.is_settled, state.changed_s = True, now
        state.expected = foretold
        state.split = KeptCount()
        self._want("")
        return Decided(wanted, _reason(forecasts, why))

    def mix(self, now: float) -> str:
        """Choose mixed whatever forecasts say; this load has had its change."""
        self.state.is_settled, self.state.changed_s = True, now
        return MIXED

    def _wanted(
        self, here: Forecast, best: Forecast, expected: float, margin: float
    ) -> tuple[str, str]:
        """(the choice that the forecasts favour, why); `expected` is of mixed."""
        if best.attainment < max(FLOOR, expected + margin) or best.choice == MIXED:
            if here.choice == MIXED:
                return MIXED, "no split is better by enough"
            if here.attainment - expected <= TIE or here.attainment < FLOOR:
                return MIXED, "the split is no better than mixed"
            return here.choice, "the split is better than mixed"
        if here.choice != MIXED and best.attainment - here.attainment < margin:
            return here.choice, "no other split is better by enough"
        return best.choice, f"better than mixed by {best.attainment - expected:.2f}"

    def _fallen(self, now: float, present: str) -> Decided | None:
        """Go back to mixed, where the split in force was measured to be worse."""
        state = self.state
        if present == MIXED or not state.split.tells:
            return None
        expected = self._mixed_keeps(state.expected)
        share, num = state.split.share, state.split.num
        error = math.sqrt(share * (1.0 - share) / num)
        if share + 1.5 * error >= expected - WORSE:
            if num >= 10 * MEASURED:
                state.rest_s = FIRST_REST_S
            return None
        state.had_late = True  # a load gets no second split
        state.rest_until_s = now + state.rest_s
        rest_s, state.rest_s = state.rest_s, min(MOST_REST_S, 2.0 * state.rest_s)
        return Decided(
            self.mix(now),
            f"{present} kept {share:.2f} of {num} answers, mixed was to keep {expected:.2f}; no "
            f"split for {rest_s:.0f} s",
        )

    def _mixed_keeps(self, foretold: float) -> float:
        """The attainment of mixed, from its forecast and from measured answers."""
        mixed = self.state.mixed
        return (mixed.kept + EXPECTED * foretold) / (mixed.num + EXPECTED)

    def _may_be_late(self, present: str) -> bool:
        """Whether mixed does so badly that its forecast was wrong."""
        state = self.state
        poor = state.mixed.tells and state.mixed.share < POOR
        return present == MIXED and state.is_settled and not state.had_late and poor

    def _want(self, what: str) -> None:
        state = self.state
        state.num_wanted = (
            state.num_wanted + 1 if what and what == state.wanted else int(bool(what))
        )
        state.wanted = what


def _reason(forecasts: Sequence[Forecast], why: str) -> str:
    """The reason of a decision in a line, with the forecasts."""
    best = max(forecasts[1:], key=lambda each: each.attainment, default=forecasts[0])
    line = f"{why}; expected of mixed {forecasts[0].attainment:.2f}"
    if best is not forecasts[0]:
        line += f", of {best.choice} {best.attainment:.2f}"
    return line


def _best(forecasts: Sequence[Forecast]) -> Forecast:
    """The best forecast; the first is that of mixed. Of neighbouring splits that are alike it is
    the middle one, which is far from where either SLO breaks: the load may grow.
    """
    mixed, *others = forecasts
    most = max((other.attainment for other in others), default=-1.0)
    if mixed.attainment >= most:
        return mixed
    alike = [other for other in others if other.attainment >= most - TIE]
    return alike[(len(alike) - 1) // 2]
