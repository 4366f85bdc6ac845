"""Deadlines of answers: a scale of their time alone or their own, counted, and never an end."""

import msgspec
import pytest

from daemon.core.checkpoint import checkpoint, restore
from daemon.core.core import Core
from daemon.core.snapshot import MOST_SCALES, Counters, Due
from daemon.scheduler.due import due_s
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
