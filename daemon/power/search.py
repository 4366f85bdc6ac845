"""The slow search for a decode instance's cap: lower while that saves energy and keeps the pace."""

from typing import NamedTuple

from daemon.power.looks import CardLimits, PowerLook

LOWER_BELOW = 0.8
RAISE_ABOVE = 0.9
"""Shares of the TPOT SLO: below the first the cap may fall, above the second it rises."""
STEP_SHARE = 0.05
"""The size of a step, as a share of the range from the lowest cap to the default limit."""
STEPS_UP = 4
BINDS_SHARE = 0.05
"""A cap that binds for less of the time saves nothing."""
ABOVE_DRAW = 1.05
"""A cap that does not bind goes to this multiple of the most that the card drew."""
LEAST_GAIN = 1 / 3
"""The least fall of a token's energy, as a share of the fall of the power drawn."""
LEAST_FALL = 0.005
"""A draw that falls by less than this share says nothing of what a cap saves."""
ALIKE = 0.1
"""Looks are compared where their batches and rates differ by no more than this share."""
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 3600.0
_SLACK_WATTS = 1e-6


class _Before(NamedTuple):
    """The cap and look before the newest step down."""

    cap_watts: float
    look: PowerLook


class CapSearch:
    """A cap that follows the looks it is shown; it never leaves its bounds.

    A cap that was too low, or saved nothing, is remembered as a floor: it is not tried again for a
    while, and each time that it fails again for twice as long.
    """

    def __init__(self, tpot_s: float, min_share: float) -> None:
        """`tpot_s`: the TPOT SLO; `min_share`: the least cap, as a share of the default limit."""
        self._tpot_s = tpot_s
        self._min_share = min_share
        self._lowest_watts = self._highest_watts = 0.0
        self._before: _Before | None = None
        self._floor_watts: float | None = None
        self._floor_until_s = 0.0
        self._floor_why = ""
        self._wait_s = FIRST_WAIT_S
        self.cap_watts = 0.0
        self.why = ""

    def bound(self, limits: CardLimits) -> None:
        """Keep the cap within what the card accepts; it starts at the default limit."""
        highest = limits.clamped(limits.default_watts)
        lowest = min(max(limits.min_watts, self._min_share * highest), highest)
        if (lowest, highest) != (self._lowest_watts, self._highest_watts):
            self._lowest_watts, self._highest_watts = lowest, highest
            self._before = self._floor_watts = None
            self.cap_watts = min(max(self.cap_watts or highest, lowest), highest)

    @property
    def step_watts(self) -> float:
        """The size of a step, in watts."""
        return STEP_SHARE * (self._highest_watts - self._lowest_watts)

    def rest(self) -> None:
        """Compare nothing with earlier looks, as the load is another one from now on."""
        self._before = None

    def hold(self, why: str) -> None:
        """Keep the cap, as the time since the last choice says nothing of it."""
        self.rest()
        self.why = why

    def too_slow(self, look: PowerLook) -> bool:
        """Whether the pace needs more power at once."""
        return look.pace_s > RAISE_ABOVE * self._tpot_s

    def breaks(self, look: PowerLook) -> bool:
        """Whether the SLO is broken already."""
        return look.pace_s > self._tpot_s

    def give_way(self, now: float, broken: bool) -> None:
        """Go back to the cap of a look ago, where the pace was right. Where this search did not
        lower it: several steps up, or to full power where the SLO is broken.
        """
        before, self._before = self._before, None
        self._refuse(now, "as low as the pace allows")
        if before is not None:
            self.cap_watts = before.cap_watts
        else:
            up = self.cap_watts + STEPS_UP * self.step_watts
            self.cap_watts = self._highest_watts if broken else min(up, self._highest_watts)
        self.why = "raised to keep the pace"

    def decide(self, now: float, look: PowerLook) -> None:
        """Choose the cap by the look since the last choice."""
        if self.too_slow(look):
            self.give_way(now, self.breaks(look))
            return
        before, self._before = self._before, None
        if look.pace_s > LOWER_BELOW * self._tpot_s:
            self.why = "as low as the pace allows"
        elif before is not None and _gains_nothing(before.look, look):
            self._refuse(now, "lowering it further saves no energy")
            self.cap_watts = before.cap_watts
            self.why = self._floor_why
        else:
            self._forget_floor()
            self._lower(now, look)

    def _lower(self, now: float, look: PowerLook) -> None:
        target = self.cap_watts - self.step_watts
        binds = look.binding_share >= BINDS_SHARE
        if not binds and self._floor_watts is None:
            target = min(target, ABOVE_DRAW * look.most_watts)
        least, held = self._lowest_watts, False
        if self._floor_watts is not None and now < self._floor_until_s:
            least, held = max(least, self._floor_watts + self.step_watts), True
        target = max(target, least)
        if target < self.cap_watts - _SLACK_WATTS:
            self._before = _Before(self.cap_watts, look)
            self.cap_watts = target
            self.why = "lowered" if binds else "lowered to just above what is drawn"
        elif held:
            self.why = self._floor_why
        elif not binds:
            self.why = "does not bind: lowering it saves nothing"
        elif self.cap_watts <= self._lowest_watts + _SLACK_WATTS:
            self.why = "as low as it may be"

    def _refuse(self, now: float, why: str) -> None:
        """Remember the cap as a floor: it was too low or saved nothing."""
        if self._floor_watts is not None and now >= self._floor_until_s:
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        self._floor_watts = self.cap_watts
        self._floor_until_s = now + self._wait_s
        self._floor_why = why

    def _forget_floor(self) -> None:
        """Forget the floor once a cap as low as it does well."""
        if self._floor_watts is not None and self.cap_watts <= self._floor_watts + _SLACK_WATTS:
            self._floor_watts = None
            self._wait_s = FIRST_WAIT_S


def _gains_nothing(before: PowerLook, now: PowerLook) -> bool:
    """Whether less power saved too little energy, as far as the two can be compared."""
    if not _alike(before.batch, now.batch) or not _alike(before.decodes_per_s, now.decodes_per_s):
        return False
    was_j, is_j = before.joules_per_token, now.joules_per_token
    if not was_j or is_j is None or not before.watts:
        return False
    fall = 1.0 - now.watts / before.watts
    return fall > LEAST_FALL and 1.0 - is_j / was_j < LEAST_GAIN * fall


def _alike(first: float, second: float) -> bool:
    return abs(first - second) <= ALIKE * max(first, second)
