"""A self-driver as the operator of a simulated daemon."""

from collections.abc import Sequence

import numpy as np

from daemon.core.values.events import Event
from daemon.lab.autoplan.driver import SelfDriver
from daemon.lab.autoplan.pilot import AppliedPlan
from daemon.lab.autoplan.search import SeenRequests
from daemon.lab.autoplan.settings import event_of
from daemon.lab.report.measures import measure
from daemon.lab.report.records import Outcome, RequestLog
from daemon.state.slo import Slo


class SimulatedOperator:
    """Looks a few times in each period; `plans` are all that it applied, as they ended."""

    def __init__(self, driver: SelfDriver, names: Sequence[str], slo: Slo) -> None:
        self._driver, self._names, self._slo = driver, names, slo
        self._due_s = driver.look_s
        self.plans: list[AppliedPlan] = []

    @property
    def due_s(self) -> float:
        """When it looks next."""
        return self._due_s

    def look(self, now: float, log: RequestLog) -> Sequence[Event]:
        """The orders of the driver, as the Core's events."""
        self._due_s = now + self._driver.look_s
        found = self._driver.look(now, seen_of(log, self._slo, now))
        plan = self._driver.pilot.plan
        if plan is not None:
            if self.plans and self.plans[-1].applied_s == plan.applied_s:
                self.plans.pop()
            self.plans.append(plan)
        return [event_of(order, self._names, now) for order in found]


def seen_of(log: RequestLog, slo: Slo, now: float) -> SeenRequests:
    """A run's requests until now. One that waits longer than its TTFT has ended as far as its SLOs
    are concerned.
    """
    count = int(np.searchsorted(log.arrival_s, now))
    measures = measure(log)
    over = log.outcome != Outcome.UNFINISHED
    stay_s = np.where(over, np.nan_to_num(log.last_s - log.arrival_s), now - log.arrival_s)
    late = np.isnan(log.first_s) & (now - log.arrival_s > slo.ttft_s)
    tpot_s = np.where(log.output_tokens > 1, measures.tpot_s, 0.0)
    kept = (log.outcome == Outcome.FINISHED) & (measures.ttft_s <= slo.ttft_s)
    kept &= tpot_s <= slo.tpot_s
    return SeenRequests(
        log.arrival_s[:count],
        log.prompt_tokens[:count],
        log.output_tokens[:count],
        (over | late)[:count],
        kept[:count],
        over[:count],
        stay_s[:count],
    )
