"""The pilot: which settings a daemon should have, by forecasts, and by what came of them.

It is pure: forecasts, measured shares and times are arguments. A plan is made where its gain is
sure; it is on trial for one period, and undone where that period is worse than predicted.
"""

import math
from collections.abc import Sequence

import msgspec

from daemon.lab.autoplan.settings import LiveSettings

LEAST_GAIN = 0.02
"""A smaller gain of attainment is not worth a change."""
LARGE_GAIN = 0.1
"""A gain that is sure where no slice loses, however unlike the slices are: in overload attainment
falls from one to the next.
"""
MARGIN = 0.02
"""Attainment that a prediction may be short of, beside chance."""
LEAST_REQUESTS = 20
"""The fewest requests that a plan is withdrawn by."""
_DEVIATIONS = 2.0
_SURE_DEVIATIONS = 3.0
"""Those of a question that each look asks."""


class SettingsForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with their simulated attainment on each held-out slice, the same for all."""

    settings: LiveSettings
    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over slices."""
        return sum(self.shares) / len(self.shares)


class AppliedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, its prediction and its truth: shares of requests that keep both SLOs."""

    settings: LiveSettings
    before: LiveSettings
    measured_before: float
    predicted: float
    applied_s: float
    state: str = "on trial"  # on trial | kept | undone | outdated (the load changed meanwhile)
    measured: float = -1.0  # -1: not yet


class Pilot:
    """The present settings, the newest plan, and settings that came out worse than predicted."""

    def __init__(self, present: LiveSettings) -> None:
        self.present = present
        self.home = present  # an operator's own
        self.plan: AppliedPlan | None = None
        self._refuted: dict[LiveSettings, float] = {}  # when, under the present load

    @property
    def on_trial(self) -> bool:
        """Whether the newest plan waits for its judgement."""
        return self.plan is not None and self.plan.state == "on trial"

    def operator_chose(self, settings: LiveSettings) -> None:
        """Begin anew from settings that an operator chose."""
        self.present = self.home = settings
        self.load_changed(math.inf)

    def daemon_flipped(self, settings: LiveSettings) -> None:
        """Go on with roles that the daemon has given by itself: where no plan is in force, that is
        nothing to go back from.
        """
        if self.present == self.home:
            self.home = settings
        self.present = settings

    def drop_plan(self) -> None:
        """Forget the plan on trial: its orders were not given."""
        if self.plan is not None and self.on_trial:
            self.present, self.plan = self.plan.before, None

    def refuse_plan(self, now: float) -> None:
        """Drop the plan on trial, whose orders were refused, and try it no more under this load."""
        if self.on_trial:
            self._refuted[self.present] = now
            self.drop_plan()

    def applied(self, now: float) -> None:
        """Note the time at which a new plan's orders were given."""
        if self.plan is not None and self.on_trial:
            self.plan = msgspec.structs.replace(self.plan, applied_s=now)

    def load_changed(self, since_s: float) -> None:
        """Forget what was learned of the load before; a new one is known some time after it began,
        and what was refuted meanwhile stays so.
        """
        self._refuted = {each: at_s for each, at_s in self._refuted.items() if at_s >= since_s}
        if self.plan is not None and self.on_trial:
            self.plan = msgspec.structs.replace(self.plan, state="outdated")

    def may_try(self, settings: LiveSettings) -> bool:
        """Whether settings are to be simulated at all."""
        return settings not in self._refuted

    def judge(
        self, now: float, measured: float, num_requests: int, backlog_waits: bool = False
    ) -> bool:
        """Judge the plan on trial by the period since; whether it was undone.

        It is undone where attainment falls short of the prediction by more than the margin and
        chance, and is no better than before. Where it is no worse either, and a backlog from before
        the plan still waits, that is no verdict: the trial goes on.
        """
        if self.plan is None or not self.on_trial:
            return False
        plan = self.plan
        short = plan.predicted - measured > MARGIN + _chance(plan.predicted, num_requests)
        is_undone = short and measured <= plan.measured_before
        fallen = plan.measured_before - measured
        is_worse = fallen > MARGIN + _chance(plan.measured_before, num_requests)
        if is_undone and backlog_waits and not is_worse:
            return False
        state = "undone" if is_undone else "kept"
        self.plan = msgspec.structs.replace(plan, state=state, measured=measured)
        if is_undone:
            self._refuted[plan.settings] = now
            self.present = plan.before
        return is_undone

    def withdraw(self, now: float, measured: float, num_requests: int) -> bool:
        """Go back to the operator's settings where the newest requests fare surely worse than those
        before the plan did; whether that is so. A plan was made for a load: the next one may be
        served badly by it, long before enough of it was seen for another search.
        """
        plan = self.plan
        if plan is None or self.on_trial or self.present == self.home:
            return False
        short = plan.measured_before - measured
        by_chance = _chance(plan.measured_before, num_requests, _SURE_DEVIATIONS)
        if num_requests < LEAST_REQUESTS or short <= MARGIN + by_chance:
            return False
        self._refuted[self.present] = now
        self.plan = msgspec.structs.replace(plan, state="undone", measured=measured)
        self.present = self.home
        return True

    def choose(
        self, now: float, measured: float, forecasts: Sequence[SettingsForecast]
    ) -> LiveSettings | None:
        """New settings that a forecast promises to be surely better than the present ones; None:
        keep these.

        The prediction is what was measured plus the simulated gain, so that what a profile gets
        wrong of all settings alike does not count. A gain is sure where its mean is above its
        spread over slices, or where it is large and no slice loses.
        """
        here = next(each for each in forecasts if each.settings == self.present)
        best = max(forecasts, key=lambda each: each.mean)
        gains = [a - b for a, b in zip(best.shares, here.shares, strict=True)]
        gain = sum(gains) / len(gains)
        above_spread = gain > max(gains) - min(gains)
        loses_nowhere = gain >= LARGE_GAIN and min(gains) >= 0.0
        if gain < LEAST_GAIN or not (above_spread or loses_nowhere):
            return None
        self.plan = AppliedPlan(
            settings=best.settings,
            before=self.present,
            measured_before=measured,
            predicted=min(1.0, measured + gain),
            applied_s=now,
        )
        self.present = best.settings
        return self.present


def _chance(share: float, num: int, deviations: float = _DEVIATIONS) -> float:
    """The difference of a share of so many requests that chance makes."""
    return deviations * float((share * (1.0 - share) / max(1, num)) ** 0.5)
