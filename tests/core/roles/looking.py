"""A load that comes, and what is decided of it: the pure parts together, without a Core."""

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from daemon.roles.decide import MIXED, Decided, Decider
from daemon.roles.forecast import Costs, Fleet, Forecast, Split, forecast
from daemon.roles.window import LoadWindow
from daemon.state.slo import Slo

COSTS = Costs(0.020, 0.0004, 6e-7, 1e-4, 7e-9)
FLEET = Fleet(COSTS, COSTS, 55_000, 256, 512, 512, 0.01)
TOKEN_S = 0.03

Keeps = Callable[[float, str], float]
"""From the time and the choice in force: the share of answers that keep both promises."""

Rates = Callable[[float], tuple[float, int, int]]
"""From the time: (requests a second, mean prompt, mean answer)."""


class Looking:
    """Draws a load by chance, and looks every time that a bucket is full."""

    def __init__(
        self, slo: Slo, instances: int = 4, seed: int = 0, keeps: Keeps | None = None
    ) -> None:
        self.window, self.decider = LoadWindow(), Decider()
        self.slo, self.instances = slo, instances
        self.present = MIXED
        self.changes: list[tuple[float, str]] = []
        self.whys: list[str] = []
        self.told: list[Forecast] = []
        self._keeps = keeps  # None: nobody tells what answers kept
        self._chance = np.random.default_rng(seed)

    def run(self, rates: Rates, until_s: float) -> None:
        now, running = 0.0, list[tuple[float, float, int]]()
        while now < until_s:
            rate, prompt, answer = rates(now)
            now += float(self._chance.exponential(1.0 / rate))
            while running and running[0][0] <= now:
                ended_s, arrived_s, tokens = heappop(running)
                self.look(ended_s, running)
                self.window.ended(ended_s, arrived_s, 100, tokens)
                if self._keeps is not None:
                    kept = self._chance.random() < self._keeps(arrived_s, self.present)
                    self.decider.ended(arrived_s, bool(kept), self.present)
            self.look(now, running)
            first = self.window.since_s < 0.0
            self.window.arrived(now, 1 + int(self._chance.exponential(prompt)), 1)
            if first:
                self.decider.begin(now)
            tokens = 1 + int(self._chance.exponential(answer))
            heappush(running, (now + TOKEN_S * tokens, now, tokens))

    def look(self, now: float, running: list[tuple[float, float, int]]) -> None:
        window = self.window
        if window.since_s < 0.0 or now < window.edge_s:
            return
        if window.close(now):
            self.decider.begin(window.since_s)
        if not self.decider.enough(now, window.num_requests):
            return
        if decided := self.decider.without(now, self.present, self.told):
            self.take(now, decided)
            return
        begun = [one for one in running if one[1] >= window.since_s]
        unended = [(100, int((now - arrived_s) / TOKEN_S)) for _, arrived_s, _ in begun]
        load = window.load(unended, 0.0)
        if load is None:
            return
        choices = [Split(0, self.instances)]
        choices += [Split(one, self.instances - one) for one in range(1, self.instances)]
        self.told = [forecast(load, FLEET, self.slo, one) for one in choices]
        self.take(now, self.decider.look(now, self.present, self.told))

    def take(self, now: float, decided: Decided) -> None:
        self.whys.append(decided.why)
        if decided.choice != self.present:
            self.present = decided.choice
            self.changes.append((now, decided.choice))
