"""The governor over made-up cards: bounds, what it converges to, and how fast it gives way."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from daemon.power.governor import LOOK_S, PowerGovernor
from daemon.power.looks import CardLimits, PowerSample
from daemon.state.role import Role

TPOT_S = 0.1
LIMITS = CardLimits(100.0, 350.0, 300.0)
LOWEST = 150.0
STEP_WATTS = 7.5
"""5 % of what lies between half of the default limit and all of it."""


@dataclass
class MadeUpCard:
    """Draws what it wants or its cap; its steps take as long as that allows."""

    wants_watts: float = 290.0
    step_s: float = 0.05  # at all the power it wants
    power: float = 0.3  # how a step's time goes with the share that it gets
    idle_watts: float = 60.0
    batch: int = 16
    tells_binding: bool = True
    tells_energy: bool = True
    energy_j: float = 1000.0
    now: float = 100.0
    left_s: float = 0.0
    caps: list[tuple[float, float]] = field(default_factory=list)
    held_watts: float = 0.0  # that somebody else wants for it
    shown_s: float = 0.0  # what a step took in the newest second

    def took_s(self, cap: float) -> float:
        return self.step_s * max(1.0, self.wants_watts / cap) ** self.power

    def second(self, governor: PowerGovernor) -> None:
        """Work for a second at the governor's wish, and be read."""
        cap = max(governor.wish_watts or LIMITS.default_watts, self.held_watts)
        drawn = min(self.wants_watts, cap) if self.batch else self.idle_watts
        self.shown_s = self.took_s(cap)
        self.left_s += 1.0
        while self.left_s >= self.shown_s:
            self.left_s -= self.shown_s
            if self.batch:
                governor.step(self.shown_s, self.batch, self.batch)
        self.now += 1.0
        self.energy_j += drawn
        binding = self.wants_watts > cap if self.tells_binding else None
        energy_j = self.energy_j if self.tells_energy else None
        governor.sample(self.now, LIMITS, PowerSample(drawn, cap, energy_j, binding))
        assert governor.wish_watts is not None
        self.caps.append((self.now, governor.wish_watts))

    def run(self, governor: PowerGovernor, seconds: int) -> float:
        """Work so long; the wish then."""
        for _ in range(seconds):
            self.second(governor)
        return self.caps[-1][1]


def decoding() -> PowerGovernor:
    return PowerGovernor(Role.DECODE, TPOT_S, 0.5)


def test_nothing_is_wished_before_the_card_was_read() -> None:
    governor = decoding()
    governor.step(0.05, 16, 16)
    assert governor.wish_watts is None
    MadeUpCard().second(governor)
    assert governor.wish_watts == 300.0


@pytest.mark.parametrize("role", [Role.PREFILL, Role.MIXED])
def test_prompts_get_the_default_limit(role: Role) -> None:
    card, governor = MadeUpCard(), PowerGovernor(role, TPOT_S, 0.5)
    assert card.run(governor, 300) == 300.0
    assert governor.why == f"the card's default, for {role}"
    assert governor.last_look is not None and governor.last_look.joules_per_token is not None
    assert governor.energy_j == pytest.approx(299 * 290.0)


@pytest.mark.parametrize("tells", [True, False])
def test_a_cap_that_binds_falls_to_the_least_share_while_the_pace_allows(tells: bool) -> None:
    """The paper's token machines: 50 % of the power, and hardly slower."""
    card, governor = MadeUpCard(tells_binding=tells, tells_energy=tells), decoding()
    assert card.run(governor, 400) == LOWEST
    assert governor.why == "as low as it may be"
    assert card.shown_s < 0.8 * TPOT_S


def test_the_pace_ends_the_fall() -> None:
    card, governor = MadeUpCard(step_s=0.07, power=0.5), decoding()
    watts = card.run(governor, 600)
    assert 0.8 * TPOT_S < card.shown_s <= 0.9 * TPOT_S
    assert LOWEST < watts < 290.0 and governor.why == "as low as the pace allows"
    assert len({watts for _, watts in card.caps[-300:]}) == 1


def test_a_load_that_grows_gets_several_steps_before_the_slo_breaks() -> None:
    card, governor = MadeUpCard(), decoding()
    low = card.run(governor, 400)
    card.step_s = 0.077
    assert TPOT_S > card.took_s(low) > 0.9 * TPOT_S
    card.run(governor, 3)
    assert governor.wish_watts == low + 4 * STEP_WATTS
    assert governor.why == "raised to keep the pace"
    floor_s = card.now
    card.step_s = 0.05
    while (governor.wish_watts or 0.0) > low:
        card.second(governor)
    assert card.now - floor_s > 55.0, "what was too low is not tried again at once"


@pytest.mark.parametrize(("step_s", "power"), [(0.07, 1.0), (0.09, 0.5), (0.09, 1.0)])
def test_a_load_that_breaks_the_slo_gets_all_the_power_at_once(step_s: float, power: float) -> None:
    """Half of the power was enough for few decodes; then many come, as after a flip."""
    card, governor = MadeUpCard(wants_watts=130.0), decoding()
    assert card.run(governor, 60) == LOWEST
    card.wants_watts, card.step_s, card.power = 295.0, step_s, power
    num_late = 0
    for _ in range(60):
        card.second(governor)
        num_late += card.shown_s > TPOT_S
    assert 0 < num_late <= 4


def test_the_same_floor_is_tried_after_twice_as_long_each_time() -> None:
    """Just above one step's cap the pace breaks: each try costs a look, and tries grow rare."""
    card, governor = MadeUpCard(step_s=0.079, power=8.0), decoding()
    card.run(governor, 2000)
    tries = [now for (_, before), (now, watts) in pairwise(card.caps) if watts < before]
    waits = [later - one for one, later in pairwise(tries)][-4:]
    assert all(later > 1.6 * one for one, later in pairwise(waits)), waits
    kept = [watts for _, watts in card.caps[300:]]
    assert 0.0 < max(kept) - min(kept) <= STEP_WATTS + 1e-6


def test_a_cap_that_does_not_bind_goes_to_what_is_drawn_at_once_and_stays() -> None:
    """H100: decode draws 0.43 to 0.46 of the limit. Half of it never binds, and saves nothing."""
    card, governor = MadeUpCard(wants_watts=0.45 * 300.0), decoding()
    card.run(governor, int(LOOK_S) + 3)
    assert governor.wish_watts == LOWEST
    assert governor.why == "lowered to just above what is drawn"
    assert card.run(governor, 300) == LOWEST
    assert governor.why == "does not bind: lowering it saves nothing"
    assert len({watts for _, watts in card.caps}) == 2


def test_a_step_that_saves_nothing_is_taken_back() -> None:
    """Half the power, twice the time: a token costs as much."""
    card, governor = MadeUpCard(step_s=0.03, power=1.0), decoding()
    watts = card.run(governor, 500)
    assert 270.0 < watts <= 300.0 and governor.why == "lowering it further saves no energy"


def test_idle_keeps_its_cap() -> None:
    card, governor = MadeUpCard(), decoding()
    card.run(governor, 100)
    card.batch = 0
    kept = card.run(governor, int(LOOK_S))
    assert card.run(governor, 500) == kept
    governor.lost(card.now)
    assert governor.wish_watts == kept and governor.last_look is None


def test_a_wish_that_is_not_in_force_does_not_fall_further() -> None:
    """Somebody else holds the card's limit higher: what a lower one would do is not seen."""
    card, governor = MadeUpCard(held_watts=300.0), decoding()
    assert card.run(governor, 400) == 300.0 - STEP_WATTS
    assert governor.why == "the card's limit is held higher by others"
    card.held_watts = 0.0
    assert card.run(governor, 1) >= 300.0 - 2 * STEP_WATTS, "not all at once"
    assert card.run(governor, 400) == LOWEST


def test_a_flip_changes_the_cap_at_once_and_back_it_is_as_before() -> None:
    card, governor = MadeUpCard(), decoding()
    low = card.run(governor, 200)
    assert low < 300.0
    governor.set_role(card.now, Role.PREFILL)
    assert governor.wish_watts == 300.0
    card.run(governor, 50)
    governor.set_role(card.now, Role.DECODE)
    assert governor.wish_watts == low
    assert card.run(governor, int(LOOK_S) - 1) == low


def test_pinned_watts_are_kept_through_everything() -> None:
    card, governor = MadeUpCard(), decoding()
    card.run(governor, 100)
    governor.pin(card.now, 120.0)
    assert card.run(governor, 100) == 120.0 and governor.why == "pinned"
    governor.set_role(card.now, Role.PREFILL)
    assert governor.wish_watts == 120.0
    governor.pin(card.now, 9999.0)
    assert governor.wish_watts == 350.0, "as near as the card can"
    governor.pin(card.now, None)
    assert governor.wish_watts == 300.0


def test_an_energy_counter_that_begins_anew_loses_nothing() -> None:
    card, governor = MadeUpCard(), decoding()
    card.run(governor, 5)
    card.energy_j = 0.0
    card.run(governor, 5)
    assert governor.energy_j == pytest.approx(9 * 290.0)


def place(cap: float) -> int:
    """Of a cap in a table with an entry for each step."""
    return round((cap - LOWEST) / STEP_WATTS)


class TableCard(MadeUpCard):
    """Its steps take what a table says."""

    def __init__(self, paces: list[float]) -> None:
        super().__init__()
        self._paces = paces

    def took_s(self, cap: float) -> float:
        return self._paces[place(cap)]


pairs = st.tuples(st.floats(0.02, 0.15), st.floats(0.0, 6.0))
loads = st.builds(
    lambda pair, wants, batch, told: (*pair, wants, batch, told),
    pairs,
    st.floats(80.0, 340.0),
    st.integers(0, 64),
    st.booleans(),
)


LONG_STEP = [
    (0.12342574467399456, 4.4989471678333395, 237.6101919412182, 0, False),
    (0.02807033026658482, 2.2509662266190897, 100.0, 12, True),
    (0.1122632348300983, 6.0, 335.72577376332913, 25, True),
]
"""At the lowest cap, a step takes longer than a look."""


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example(LONG_STEP)
@given(st.lists(loads, min_size=1, max_size=4))
def test_of_any_card_and_load(plan: list[tuple[float, float, float, int, bool]]) -> None:
    """Within bounds always; too slow gets more within a look, or when the step that shows it ends;
    in the end it moves one step at most a minute.
    """
    governor, card = decoding(), MadeUpCard()
    for step_s, power, wants, batch, told in plan:
        card.step_s, card.power, card.wants_watts, card.batch = step_s, power, wants, batch
        card.tells_binding = told
        slow_s = 0
        for _ in range(100):
            cap = governor.wish_watts or 300.0
            card.second(governor)
            now_cap = governor.wish_watts
            assert now_cap is not None and LOWEST <= now_cap <= 300.0
            too_slow = bool(batch) and card.shown_s > TPOT_S and cap < 300.0
            slow_s = slow_s + 1 if too_slow and now_cap <= cap else 0
            assert slow_s <= max(LOOK_S + 1, math.ceil(card.shown_s))
    settled(governor, card)


def settled(governor: PowerGovernor, card: MadeUpCard) -> None:
    card.run(governor, 2400)  # the search goes down step by step, with rests between
    newest = [watts for _, watts in card.caps[-300:]]
    for begin in range(len(newest) - 60):
        minute = newest[begin : begin + 60]
        assert max(minute) - min(minute) <= STEP_WATTS + 1e-6
        moves = [b - a for a, b in pairwise(minute) if a != b]
        assert len(moves) <= 2


@settings(max_examples=20, deadline=None, phases=[Phase.reuse, Phase.generate])
@given(
    st.lists(st.floats(0.02, 0.12), min_size=21, max_size=21),
    st.lists(st.floats(0.3, 1.0), min_size=21, max_size=21),
)
def test_of_any_table_of_paces_and_draws(paces: list[float], draws: list[float]) -> None:
    """Not even monotone: it stays in bounds, and what is too slow gets more."""
    card, governor = TableCard(paces), decoding()
    slow_s = 0
    for _ in range(400):
        cap = governor.wish_watts or 300.0
        card.wants_watts = max(61.0, cap * draws[place(cap)])
        card.second(governor)
        assert LOWEST <= (governor.wish_watts or 0.0) <= 300.0
        too_slow = card.shown_s > TPOT_S and cap < 300.0 and (governor.wish_watts or 0.0) <= cap
        slow_s = slow_s + 1 if too_slow else 0
        assert slow_s <= max(LOOK_S + 1, math.ceil(card.shown_s))
