"""Placement: what it is told, when it is asked, and what the only one so far answers."""

from collections.abc import Sequence as Listing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.placement import PLACEMENTS
from daemon.placement.base import Candidate, Placement
from daemon.placement.least_loaded import LeastLoaded
from daemon.request import sequence_id
from daemon.role import Role
from daemon.sequence import Sequence
from tests.core.driver import Driver, configured

NEWCOMER = Sequence(128, 5, 5, 0, 0.0, 0)


def candidate(instance: int, tokens: int = 0, running: int = 0, share: float = 0.0) -> Candidate:
    return Candidate(instance, Role.MIXED, tokens, running, share)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([candidate(0, 9), candidate(1, 8)], 1),
        ([candidate(0, 8, share=0.5), candidate(1, 8, share=0.4)], 1),
        ([candidate(0, 8, running=2), candidate(1, 8, running=1)], 1),
        ([candidate(3), candidate(2)], 2),
    ],
)
def test_the_least_loaded_has_few_tokens_waiting_then_free_memory(
    candidates: list[Candidate], chosen: int
) -> None:
    assert LeastLoaded().choose(NEWCOMER, candidates, 0) == chosen


@given(st.permutations(range(4)), st.integers(0, 2**63))
def test_neither_order_nor_seed_matters_to_it(order: list[int], seed: int) -> None:
    loads = [candidate(0, 3, 1, 0.5), candidate(1, 3, 1, 0.4), candidate(2, 9), candidate(3, 3)]
    assert LeastLoaded().choose(NEWCOMER, [loads[i] for i in order], seed) == 3


Asked = list[tuple[int, tuple[int, ...], int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a placement is asked that chooses the last of its candidates."""
    seen: Asked = []

    class Last(Placement):
        name = "last"
        meaning = "to the last one"

        def choose(self, sequence: Sequence, candidates: Listing[Candidate], seed: int) -> int:
            seen.append((sequence.id, tuple(one.instance for one in candidates), seed))
            return candidates[-1].instance

    monkeypatch.setitem(PLACEMENTS, "last", Last)
    return seen


def test_the_configured_placement_decides_with_a_seed_for_each_sequence(asked: Asked) -> None:
    driver = Driver(configured(instances=3, placement="last"), 64)
    requests = [driver.arrive([number] * 5, 4) for number in range(3)]
    ids = [sequence_id(request, 0) for request in requests]
    assert [one for one, *_ in asked] == ids
    assert {candidates for _, candidates, _ in asked} == {(0, 1, 2)}
    assert len({seed for *_, seed in asked}) == 3
    assert {driver.core.sequences[one].instance for one in ids} == {2}
    driver.settle()
    driver.check_nothing_left()


def test_nobody_is_asked_where_there_is_no_choice(asked: Asked) -> None:
    driver = Driver(configured(instances=2, placement="last"), 64)
    driver.lose(1)
    driver.arrive([1] * 5, 4)
    assert asked == []


def test_another_placement_than_the_default_gives_the_same_again(asked: Asked) -> None:
    def told() -> Asked:
        asked.clear()
        driver = Driver(configured(instances=2, placement="last"), 64)
        for number in range(6):
            driver.arrive([number] * 9, 3)
        driver.settle()
        return list(asked)

    assert told() == told()
