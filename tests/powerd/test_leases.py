"""The limit in force is that of the highest lease, whoever comes, changes, gives back or goes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from daemon.powerd.leases import PowerLeases, clamped_mw

MIN_MW, MAX_MW, ORIGINAL_MW = 100_000, 350_000, 300_000

connections = st.integers(1, 5)
devices = st.sampled_from(["GPU-a", "GPU-b", "GPU-c"])
wishes = st.floats(0, 1e300) | st.floats(90, 360)


class LeaseMachine(RuleBasedStateMachine):
    """Against a plain table of who wants what."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = PowerLeases()
        self.table: dict[tuple[int, str], float] = {}

    @rule(connection=connections, device=devices, watts=wishes)
    def lease(self, connection: int, device: str, watts: float) -> None:
        self.leases.put(connection, device, watts)
        self.table[connection, device] = watts

    @rule(connection=connections, device=devices)
    def give_back(self, connection: int, device: str) -> None:
        self.leases.put(connection, device, None)
        self.table.pop((connection, device), None)

    @rule(connection=connections)
    def vanish(self, connection: int) -> None:
        had = {device for number, device in self.table if number == connection}
        assert sorted(self.leases.drop(connection)) == sorted(had)
        for device in had:
            del self.table[connection, device]

    @rule()
    def end(self) -> None:
        self.leases.clear()
        self.table.clear()

    @invariant()
    def the_highest_counts(self) -> None:
        for device in ("GPU-a", "GPU-b", "GPU-c"):
            wanted = [watts for (_, name), watts in self.table.items() if name == device]
            highest = self.leases.highest(device)
            assert highest == (max(wanted) if wanted else None)
            if highest is not None:
                cap_mw = clamped_mw(highest, MIN_MW, MAX_MW)
                assert MIN_MW <= cap_mw <= MAX_MW
                assert all(cap_mw >= min(1000 * one, MAX_MW) - 0.5 for one in wanted)

    @invariant()
    def everybody_holds_what_it_leased(self) -> None:
        for connection in range(1, 6):
            for device in ("GPU-a", "GPU-b", "GPU-c"):
                assert self.leases.held(connection, device) == self.table.get((connection, device))


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize(
    ("watts", "cap_mw"),
    [
        *((0, MIN_MW), (-0.0, MIN_MW), (99.9, MIN_MW), (250, 250_000), (250.0004, 250_000)),
        *((123.4567, 123_457), (351, MAX_MW), (1e308, MAX_MW)),
    ],
)
def test_a_wish_becomes_what_the_card_can_have(watts: float, cap_mw: int) -> None:
    assert clamped_mw(watts, MIN_MW, MAX_MW) == cap_mw


def test_what_a_card_has_survives_the_way_over_watts() -> None:
    for limit_mw in range(MIN_MW, MAX_MW, 7):
        assert clamped_mw(limit_mw / 1000, MIN_MW, MAX_MW) == limit_mw
