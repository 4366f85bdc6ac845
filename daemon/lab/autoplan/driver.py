"""The self-driver: follows the load, has settings searched when it changes, and gives orders."""

from collections.abc import Callable, Sequence

import numpy as np

from daemon.lab.autoplan.pilot import MARGIN, Pilot
from daemon.lab.autoplan.search import SeenRequests, SettingsSearch
from daemon.lab.autoplan.settings import LiveOrder, LiveSettings, neighbours, orders
from daemon.protocol.plan import PlanStatus
from daemon.roles.window import LoadWindow

LOOKS = 4
"""Looks in a period."""
BACKLOG_PERIODS = 4
"""A trial goes on for so long where requests from before it wait."""


class SelfDriver:
    """Looks at what came a few times in each period; a plan is made at most once in one.

    It searches where the load has changed, or where the period has lost more attainment than the
    margin: what all clients get already cannot be bettered.
    """

    def __init__(
        self,
        present: LiveSettings,
        names: Sequence[str],
        policies: Sequence[str],
        search: SettingsSearch,
        period_s: float,
        may_split: bool = True,
        budgets: Sequence[int] = (),
    ) -> None:
        """`budgets`: those to choose from beside the configured one."""
        self.pilot = Pilot(present)
        self.look_s = period_s / LOOKS
        self._names, self._policies, self._budgets = names, policies, budgets
        self._search, self._period_s = search, period_s
        self.may_split = may_split  # whether roles may change
        self._window = LoadWindow()
        self._followed_s = -np.inf  # arrivals until then are in the window
        self._load_s = -1.0  # when the load began that the newest search was about
        self._told_s = -1.0  # when the load began that the pilot knows of
        self._since_s = -np.inf  # when the present settings came
        self._due_s = -np.inf
        self.searches = 0
        self.note = "nothing was seen yet"  # the outcome of the last look

    def look(
        self, now: float, seen: SeenRequests, is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[LiveOrder]:
        """The orders to give now, mostly none, given all requests of some periods."""
        self._follow(now, seen)
        load_s = self._window.since_s
        fresh = seen.between(load_s, now)
        is_new, lacking = load_s != self._load_s, fresh.lacking(self._search.slo)
        if load_s != self._told_s:
            self._told_s = load_s
            self.pilot.load_changed(load_s)
        before = self.pilot.present
        newest = self._newest(now, seen)
        if self.pilot.withdraw(now, newest.attainment, len(newest)):
            self.note = (
                f"{newest.attainment:.1%} keep both SLOs, fewer than before the plan: undone"
            )
            return self._orders(now, before)
        if lacking and not self.pilot.on_trial:
            self.note = f"{len(fresh)} requests of this load: a search needs {lacking} more"
            return []
        here = fresh.between(max(self._since_s, now - 2 * self._period_s), now)
        measured = here.attainment
        if not (is_new or now >= self._due_s) or not here.ended.any():
            return []
        self._due_s = now + self._period_s
        num_ended, waits = int(here.ended.sum()), self._backlog_waits(now, seen)
        if not self.pilot.judge(now, measured, num_ended, waits):
            if self.pilot.on_trial:
                self.note = "the trial goes on: requests from before the plan wait"
            elif measured >= 1.0 - MARGIN:
                self.note = f"{measured:.1%} keep both SLOs: there is nothing to gain"
                self._load_s = load_s
            elif not lacking and self._choose(now, measured, fresh, is_cancelled):
                self._load_s = load_s
        return self._orders(now, before)

    def _newest(self, now: float, seen: SeenRequests) -> SeenRequests:
        """The newest requests whose answers are to be judged, of about a look."""
        slo = self._search.slo
        recent = seen.between(now - 2 * self._period_s, now)
        stay_s = float(recent.promised_s(slo).mean()) if len(recent) else 0.0
        return seen.between(max(self._since_s, now - self.look_s - stay_s), now).judged(slo, now)

    def _backlog_waits(self, now: float, seen: SeenRequests) -> bool:
        """Whether requests from before the present settings wait, not longer than some periods."""
        older = seen.between(-np.inf, self._since_s)
        waits = ~older.over & (older.output_tokens == 0)
        return bool(waits.any()) and now - self._since_s < BACKLOG_PERIODS * self._period_s

    def given(self, now: float) -> None:
        """Count from now on: the last look, which took a while, led to orders that were given."""
        self._since_s, self._due_s = now, now + self._period_s
        self.pilot.applied(now)

    def _orders(self, now: float, before: LiveSettings) -> list[LiveOrder]:
        """Those that lead to the pilot's settings."""
        if self.pilot.present == before:
            return []
        self._since_s = now
        return orders(before, self.pilot.present, self._names)

    def status(self, note: str) -> PlanStatus:
        """Plan, prediction and truth, for viewers."""
        plan, present = self.pilot.plan, self.pilot.present.text
        if plan is None:
            return PlanStatus(settings=present, searches=self.searches, note=note)
        return PlanStatus(
            settings=plan.settings.text,
            before=plan.before.text,
            state=plan.state,
            measured_before=plan.measured_before,
            predicted=plan.predicted,
            measured=plan.measured,
            applied_s=plan.applied_s,
            searches=self.searches,
            note=note,
        )

    def _choose(
        self, now: float, measured: float, fresh: SeenRequests, is_cancelled: Callable[[], bool]
    ) -> bool:
        """Search, and choose; False where too little has come, or the search was cancelled."""
        present = self.pilot.present
        others = [
            each
            for each in neighbours(present, self._policies, self.may_split, self._budgets)
            if each != present and self.pilot.may_try(each)
        ]
        forecasts = self._search.forecasts(fresh, present, others, is_cancelled)
        if not forecasts:
            return False
        self.searches += 1
        chosen = self.pilot.choose(now, measured, forecasts)
        shares = ", ".join(f"{each.settings.text} {each.mean:.1%}" for each in forecasts)
        self.note = f"{'changed' if chosen else 'no sure gain'}: {shares} expected"
        return True

    def _follow(self, now: float, seen: SeenRequests) -> None:
        """Take new arrivals into the window that tells changes of the load."""
        new = seen.between(np.nextafter(self._followed_s, np.inf), now)
        for arrived_s, tokens in zip(
            new.arrival_s.tolist(), new.prompt_tokens.tolist(), strict=True
        ):
            self._window.close(arrived_s)
            self._window.arrived(arrived_s, tokens, 1)
            self._followed_s = arrived_s
        self._window.close(now)
