"""Deadlines of answers: a scale of their time alone or their own, counted, and never an end."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.snapshot import MOST_SCALES, Counters, Due, DueNow
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.core.view.view import snapshot, story
from daemon.scheduler.due import due_s
from daemon.state.request import sequence_id
from tests.core.driver import Driver, configured

STEP_S = 0.001
"""Of a worker of the driver; a prompt's tokens add nothing to it."""


def counted(**asked: float) -> tuple[Due, ...]:
    """An answer of four tokens, which takes four steps; alone it is said to take five."""
    driver = Driver(configured(), 50, step_s=STEP_S)
    driver.arrive([1, 2, 3], 4, **asked)  # type: ignore[arg-type]
    driver.settle()
    assert driver.core.counters.finished == 1, "late or not, it is whole"
    return driver.core.counters.due


def test_an_answer_keeps_its_scale_or_misses_it() -> None:
    assert counted() == ()
    assert counted(slo_scale=1.0) == (Due(1.0, kept=1),)
    assert counted(slo_scale=0.7) == (Due(0.7, missed=1),)


def test_its_own_deadline_counts_instead() -> None:
    assert counted(slo_scale=1.0, deadline_s=1.5 * STEP_S) == (Due(0.0, missed=1),)
    assert counted(slo_scale=0.1, deadline_s=9.0) == (Due(0.0, kept=1),)


def test_a_scale_is_of_what_the_worker_measured_and_not_of_what_steps_take_now() -> None:
    driver = Driver(configured(), 50, step_s=STEP_S, token_s=0.5)
    driver.arrive([1, 2, 3], 20, slo_scale=2.0)
    driver.answer()
    (sequence,) = driver.core.sequences.values()
    due = due_s(sequence, driver.core.instances[0].step_time, 9)
    assert due == pytest.approx(2.0 * (STEP_S + 3 * 0.5 + 9 * STEP_S))
    model = driver.core.instances[0].step_time
    for _ in range(40):
        driver.step_s = 1.0
        driver.answer()
    assert due_s(sequence, model, 9) == due and model.mean_s > STEP_S


def test_a_core_that_was_written_down_knows_it_again() -> None:
    driver = Driver(configured(), 50, step_s=STEP_S)
    driver.arrive([1, 2, 3], 4, slo_scale=1.0)
    driver.settle()
    again = Core(driver.config)
    restore(again, checkpoint(driver.core, driver.now))
    assert again.instances[0].step_time.alone == (STEP_S, 0.0)
    assert again.counters == driver.core.counters


def test_scales_are_counted_apart_and_bounded() -> None:
    counters = Counters()
    for scale in (2.0, 5.0, 2.0):
        counters.note_due(scale, scale == 2.0)
    assert sorted(map(msgspec.structs.astuple, counters.due)) == [(2.0, 2, 0), (5.0, 0, 1)]
    for number in range(100):
        counters.note_due(10.0 + number, True)
    assert len(counters.due) == MOST_SCALES and counters.due[-1] == Due(109.0, 1)


def living(driver: Driver) -> tuple[DueNow, ...]:
    return snapshot(driver.core, driver.now).due


def test_those_that_live_are_told_by_scale_with_the_first_deadline_of_each() -> None:
    driver = Driver(configured(max_running=1), 50, step_s=STEP_S)
    driver.arrive([1, 2, 3], 4)
    assert living(driver) == ()
    driver.settle()
    begin_s = driver.now
    first = driver.arrive([1, 2, 3], 20, slo_scale=2.0)
    driver.arrive([1, 2, 3], 10, slo_scale=2.0)
    driver.arrive([1, 2, 3], 4, deadline_s=9.0)
    driver.arrive([1, 2, 3], 4, slo_scale=0.5)
    own, short, scaled = living(driver)
    assert own == DueNow(0.0, waiting=1, least_left_s=9.0 - driver.now)
    assert (short.scale, short.waiting, short.late) == (0.5, 1, 0)
    assert (scaled.scale, scaled.running, scaled.waiting, scaled.late) == (2.0, 1, 1, 0)
    assert scaled.least_left_s == pytest.approx(begin_s + 2.0 * 11 * STEP_S - driver.now)
    driver.predict(first, 4)
    left_s = begin_s + 2.0 * 5 * STEP_S - driver.now
    assert living(driver)[2].least_left_s == pytest.approx(left_s)
    for _ in range(4):
        driver.answer()
    assert [one.late for one in living(driver)] == [0, 1, 0]
    assert living(driver)[1].least_left_s is None, "of those that are late it says nothing"


def test_a_story_tells_a_deadline_by_scale_as_it_is_expected_and_then_as_it_was() -> None:
    driver = Driver(configured(), 50, step_s=STEP_S)
    request = driver.arrive([1, 2, 3], 6, slo_scale=2.0)
    sequence = sequence_id(request, 0)
    driver.predict(request, 2)
    assert story(driver.core, sequence, driver.now).deadline_s == pytest.approx(2.0 * 3 * STEP_S)
    while story(driver.core, sequence, driver.now).status:
        driver.answer()
        told = story(driver.core, sequence, driver.now)
        num_tokens = told.status.num_output_tokens if told.status else 6
        assert told.deadline_s == pytest.approx(2.0 * (1 + max(2, num_tokens)) * STEP_S)
        assert told.slo_scale == 2.0


def test_of_very_many_scales_a_snapshot_tells_the_strictest() -> None:
    driver = Driver(configured(), 200, step_s=STEP_S)
    for number in range(2 * MOST_SCALES):
        driver.arrive([1, 2, 3], 4, slo_scale=100.0 - number)
    told = [one.scale for one in snapshot(driver.core, driver.now).due]
    assert told == [100.0 - number for number in range(2 * MOST_SCALES - 1, MOST_SCALES - 1, -1)]
