"""Stories: what happened to a sequence and when, told while it lives and a while after."""

import pytest

from daemon.core.values.snapshot import Story
from daemon.core.view.view import block_owners, story
from daemon.state.request import FinishReason, sequence_id
from daemon.state.story import MAX_ENDED, MAX_MARKS, MarkList, What
from tests.core.driver import Driver, configured


def told(driver: Driver, sequence: int) -> Story:
    return story(driver.core, sequence, driver.now)


def whats(one: Story) -> list[str]:
    return [mark.what for mark in one.marks]


def test_an_answer_from_its_arrival_to_its_end() -> None:
    driver = Driver(configured(), 32)
    sequence = sequence_id(driver.arrive(list(range(40)), 4), 0)
    young = told(driver, sequence)
    assert whats(young) == ["arrived", "queued", "admitted", "chunk"]
    assert young.status is not None and young.status.state == "prefill"
    assert young.blocks.size == young.status.num_blocks == 10
    driver.settle()
    old = told(driver, sequence)
    assert whats(old)[4:] == ["chunk", "chunk", "first token", "finished"]
    assert [mark.amount for mark in old.marks if mark.what == What.CHUNK] == [16, 16, 8]
    assert (old.marks[0].amount, old.marks[-1].amount) == (40, 4)
    assert old.marks[-1].other == FinishReason.LENGTH
    assert [mark.time_s for mark in old.marks] == sorted(mark.time_s for mark in old.marks)
    assert old.first_token_s == old.marks[-2].time_s
    assert old.status is None and not old.blocks.size
    assert driver.core.counters.tpot_count == 1
    span_s = old.marks[-1].time_s - old.first_token_s
    assert driver.core.counters.tpot_sum_s == pytest.approx(span_s / 3)


def test_a_deadline_is_told_of_every_stream_and_after_the_end() -> None:
    driver = Driver(configured(), 32)
    request = driver.arrive([1, 2, 3], 2, n=2, deadline_s=7.5)
    first, second = sequence_id(request, 0), sequence_id(request, 1)
    assert told(driver, first).deadline_s == 7.5
    driver.settle()
    assert [told(driver, one).deadline_s for one in (first, second)] == [7.5, 7.5]
    assert told(driver, sequence_id(driver.arrive([1], 1), 0)).deadline_s == 0.0


@pytest.mark.parametrize(("swap", "kept"), [("recompute", 0), ("reactive", 17)])
def test_who_gives_way_is_told_why_and_what_is_kept(swap: str, kept: int) -> None:
    config = configured("priority", swap=swap)
    driver = Driver(config, 8, num_host_blocks=16, copy_block_s=1e-9, token_s=1.0)
    humble = sequence_id(driver.arrive(list(range(16)), 12), 0)
    driver.answer()
    better = sequence_id(driver.arrive(list(range(100, 124)), 4, priority=-5), 0)
    driver.settle()
    marks = told(driver, humble).marks
    gave_way = next(mark for mark in marks if mark.what == What.GAVE_WAY)
    assert (gave_way.other, gave_way.amount) == (better, kept)
    back = [mark.what for mark in marks[marks.index(gave_way) :]]
    assert (What.FETCHED in back) == (What.RESTORED in back) == (kept > 0)
    assert back[-1] == What.FINISHED


def test_a_lost_worker_and_an_abort_are_in_the_story() -> None:
    driver = Driver(configured(instances=2), 32)
    request = driver.arrive(list(range(12)), 8)
    sequence = sequence_id(request, 0)
    home = driver.core.sequences[sequence].instance
    driver.lose(home)
    assert whats(told(driver, sequence))[-4:] == ["worker lost", "queued", "admitted", "chunk"]
    driver.abort(request)
    end = told(driver, sequence).marks[-1]
    assert (end.what, end.other) == (What.FINISHED, FinishReason.ABORT)


def test_streams_that_share_a_prompt_say_whose() -> None:
    driver = Driver(configured(), 32)
    request = driver.arrive(list(range(12)), 4, n=2)
    driver.settle()
    leader, follower = (sequence_id(request, index) for index in range(2))
    marks = told(driver, follower).marks
    assert [mark.what for mark in marks[:4]] == ["arrived", "held back", "queued", "shared"]
    assert marks[1].other == marks[3].other == leader


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    marks = MarkList()
    for number in range(MAX_MARKS + 10):
        marks.add(float(number), What.CHUNK, number)
    amounts = [amount for _, _, amount, _ in marks.marks]
    assert len(amounts) == MAX_MARKS
    assert amounts[0] == 0 and amounts[-1] == MAX_MARKS + 9
    assert marks.num_dropped == 10


def test_the_newest_that_ended_are_remembered_and_no_others() -> None:
    driver = Driver(configured(), 32)
    first = sequence_id(driver.arrive([1, 2, 3], 1), 0)
    driver.settle()
    assert told(driver, first).marks
    for _ in range(MAX_ENDED):
        driver.arrive([1, 2, 3], 1)
        driver.settle()
    assert not told(driver, first).marks
    assert not told(driver, 10**6).marks


def test_each_block_has_its_owner() -> None:
    driver = Driver(configured(), 32)
    shared = list(range(12))
    one, two = (sequence_id(driver.arrive(shared, 8), 0) for _ in range(2))
    driver.answer()
    owned = block_owners(driver.core, 0, driver.now)
    mine = told(driver, two).blocks
    assert set(owned.owners[mine].tolist()) == {two}
    assert owned.shares[mine].max() <= 2
    others = set(owned.owners.tolist()) - {two}
    assert others <= {one, -1}
    assert (owned.shares > 0).sum() == (owned.owners >= 0).sum()
    with pytest.raises(IndexError):
        block_owners(driver.core, 7, 0.0)
