"""The slots' order, against a list that is sorted anew each time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence

RANKS = st.sampled_from([0.0, 0.04, 0.34, 1.0, 8.6, -3.0, float("inf")])


def member(number: int, rank: float) -> Sequence:
    return Sequence(number, 4, 8, 0, 0.0, number, rank=rank)


def rerank(table: SlotTable, slot: int, rank: float) -> None:
    sequence = table.member(slot)
    sequence.rank = rank
    table.set_rank(slot, sequence)


def test_two_join_and_the_first_falls_back_before_anybody_asks() -> None:
    """As it happens when a prediction raises one that joined by the plan that is in flight."""
    table = SlotTable(4)
    first, second, third = (
        table.join(member(number, rank), 0) for number, rank in enumerate((0.02, 0.04, 0.34))
    )
    rerank(table, first, 8.6)
    assert table.order().tolist() == [second, third, first]


class SlotMachine(RuleBasedStateMachine):
    """Joins, new ranks and departures in any order; the order is asked for now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(6)
        self.places: dict[int, tuple[float, int]] = {}
        self.number = 0

    @precondition(lambda self: not self.table.full)
    @rule(rank=RANKS)
    def join(self, rank: float) -> None:
        slot = self.table.join(member(self.number, rank), 0)
        assert slot not in self.places
        self.places[slot] = (rank, self.number)
        self.number += 1

    @precondition(lambda self: self.places)
    @rule(index=st.integers(0, 5), rank=RANKS)
    def rerank(self, index: int, rank: float) -> None:
        slot = sorted(self.places)[index % len(self.places)]
        rerank(self.table, slot, rank)
        self.places[slot] = (rank, self.places[slot][1])

    @precondition(lambda self: self.places)
    @rule(index=st.integers(0, 5))
    def leave(self, index: int) -> None:
        slot = sorted(self.places)[index % len(self.places)]
        self.table.leave(slot)
        del self.places[slot]

    @rule()
    def order(self) -> None:
        assert self.table.order().tolist() == sorted(self.places, key=self.places.__getitem__)

    def teardown(self) -> None:
        self.order()


SlotMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, derandomize=True
)
TestSlots = SlotMachine.TestCase
