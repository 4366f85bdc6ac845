"""Placement in the Core: what it is told, and when it is asked."""

from collections.abc import Sequence as Listing

import pytest

from daemon.placement import PLACEMENTS
from daemon.placement.base import Candidate, Newcomer, Placement
from daemon.state.request import sequence_id
from tests.core.driver import Driver, configured

Asked = list[tuple[int, tuple[int, ...], int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What a placement is asked that chooses the last of its candidates."""
    seen: Asked = []

    class Last(Placement):
        name = "last"
        meaning = "to the last one"

        def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
            seen.append((newcomer.sequence, tuple(one.instance for one in candidates), seed))
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


def test_what_is_told_of_an_instance_is_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    class Looks(Placement):
        name = "looks"
        meaning = "to the first, after a look at all"

        def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
            for one in candidates:
                table = driver.core.instances[one.instance].scheduler.slots
                members, (known, left) = one.members, one.queued
                assert members.known.size == one.num_running == table.num_running
                assert (members.left > 0).all() and (left > 0).all()
                assert (members.known >= members.outputs).all()
                assert known.size == one.num_waiting and one.num_pending_tokens == known.sum()
                assert one.load.num == one.num_running + one.num_waiting
                assert one.context + one.prompt_left <= members.known.sum()
                assert one.capacity_tokens == 256 and one.has_room(0) and not one.has_room(257)
                assert 0.0 <= one.kv_share <= 1.0
                assert one.peak_share(members.known, members.left, 0) >= one.context / 256
                looked.append((one.instance, one.num_running, newcomer.likely_length))
            return candidates[0].instance

    monkeypatch.setitem(PLACEMENTS, "looks", Looks)
    driver = Driver(configured(instances=2, placement="looks", max_running=2), 64)
    for number in range(6):
        driver.predict(driver.arrive([number % 2] * 20, 60 if number else 8), 40)
        driver.answer(number % 2)
    assert max(num for _, num, _ in looked) == 2
    driver.settle()
    driver.check_nothing_left()
