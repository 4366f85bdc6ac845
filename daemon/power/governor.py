"""An instance's wish for its card's limit: by role, by the operator, or by a search (`search.py`).

Pure: every call has the driver's time in seconds.
"""

from collections import deque

from daemon.power.looks import CardLimits, PowerLook, PowerSample, PowerWindow
from daemon.power.search import CapSearch
from daemon.state.role import Role

LOOK_S = 10.0
LONGEST_LOOK_S = 60.0
"""The longest time a look waits for enough steps; then it begins anew."""
LEAST_STEPS = 20
"""Fewer steps say nothing of a pace, unless a whole look has no more of them."""
ROUNDED_WATTS = 1.0
"""A card may take a limit as a whole number."""
NUM_NEWEST = 5
"""Newest readings in which a pace that breaks the SLO shows, though a look has begun well."""


class PowerGovernor:
    """The wish of one instance; `wish_watts` is None while its card is unknown.

    Prompts use all the power there is, so that `prefill` and `mixed` get the card's default limit;
    `decode` gets what the search has found.
    """

    def __init__(self, role: Role, tpot_s: float, min_share: float) -> None:
        self._search = CapSearch(tpot_s, min_share)
        self._window = PowerWindow()
        self._newest = _NewestSteps(tpot_s)
        self._role = role
        self._limits: CardLimits | None = None
        self.pinned_watts: float | None = None
        self.energy_j = 0.0
        """Drawn by the card since the first reading."""
        self.last_look: PowerLook | None = None
        """The newest whole one, whatever the role."""

    @property
    def role(self) -> Role:
        """The instance's role."""
        return self._role

    @property
    def limits(self) -> CardLimits | None:
        """The limits that the card accepts; None: unknown."""
        return self._limits

    @property
    def wish_watts(self) -> float | None:
        """The limit that this instance wants for its card."""
        if self._limits is None:
            return None
        if self.pinned_watts is not None:
            return self._limits.clamped(self.pinned_watts)
        if self._searches:
            return self._search.cap_watts
        return self._limits.clamped(self._limits.default_watts)

    @property
    def why(self) -> str:
        """The reason for the wish, in words."""
        if self.pinned_watts is not None:
            return "pinned"
        return self._search.why if self._searches else f"the card's default, for {self._role}"

    def pin(self, now: float, watts: float | None) -> None:
        """Pin the wish to `watts`, as near as the card can; None: choose by role again."""
        self.pinned_watts = watts
        self._begin(now)

    def set_role(self, now: float, role: Role) -> None:
        """The instance has another role: back at `decode` it has its last cap there again."""
        if role is not self._role:
            self._role = role
            self._begin(now)

    def step(self, elapsed_s: float, num_decodes: int, num_tokens: int) -> None:
        """Count a step that answered: its time, its tokens of answers, and all of its tokens."""
        self._window.step(elapsed_s, num_decodes, num_tokens)
        if num_decodes:
            self._newest.step(elapsed_s)

    def lost(self, now: float) -> None:
        """Forget what was gathered, as the card cannot be read for now."""
        self._window.begin(now, None)
        self._search.rest()
        self.last_look = None

    def sample(self, now: float, limits: CardLimits, sample: PowerSample) -> None:
        """Take a reading of the card, once a second or so. The wish may change then."""
        if limits != self._limits:
            self._limits = limits
            self._search.bound(limits)
        self.energy_j += self._window.sample(now, sample)
        self._newest.second()
        look = self._window.look
        whole, enough = look.span_s >= LOOK_S, look.num_steps >= LEAST_STEPS
        if self._searches and look.num_steps:
            late = self._newest.late or ((whole or enough) and self._search.too_slow(look))
            if late:
                self._search.give_way(now, self._newest.late or self._search.breaks(look))
            elif whole and enough and self._is_held(sample):
                self._search.hold("the card's limit is held higher by others")
            elif whole and enough:
                self._search.decide(now, look)
            elif not whole or look.span_s < LONGEST_LOOK_S:
                return
            self._close(now, look)
        elif whole:
            self._close(now, look)

    @property
    def _searches(self) -> bool:
        return self._role is Role.DECODE and self.pinned_watts is None

    def _is_held(self, sample: PowerSample) -> bool:
        """Whether the wish is not in force, so that its effect cannot be seen."""
        return sample.cap_watts > self._search.cap_watts + ROUNDED_WATTS

    def _close(self, now: float, look: PowerLook) -> None:
        self.last_look = look
        self._window.begin(now, self._window.newest)
        self._newest.clear()

    def _begin(self, now: float) -> None:
        self._window.begin(now, self._window.newest)
        self._newest.clear()
        self._search.rest()


class _NewestSteps:
    """The number of the newest few seconds' steps that broke the SLO."""

    def __init__(self, tpot_s: float) -> None:
        self._tpot_s = tpot_s
        self._seconds: deque[tuple[int, int]] = deque(maxlen=NUM_NEWEST)  # (late, all)
        self.clear()

    def clear(self) -> None:
        """Forget all; steps that answer before the next reading have begun before."""
        self._seconds.clear()
        self._late = self._all = 0
        self._begins = True

    def step(self, elapsed_s: float) -> None:
        self._late += elapsed_s > self._tpot_s
        self._all += 1

    def second(self) -> None:
        """Close a second, as the card was read."""
        if not self._begins:
            self._seconds.append((self._late, self._all))
        self._late = self._all = 0
        self._begins = False

    @property
    def late(self) -> bool:
        """Whether most of these steps were late."""
        return sum(2 * late - steps for late, steps in self._seconds) > 0
