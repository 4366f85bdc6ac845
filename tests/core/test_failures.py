"""A row that fails in the engine: its sequence fails alone, and nobody learns from it."""

import pytest

from daemon.core.values.actions import Started
from daemon.core.values.snapshot import Counters
from daemon.core.view.view import story
from daemon.state.request import FinishReason, sequence_id
from daemon.state.story import What
from tests.core.driver import Driver, configured

FIRST = frozenset({0})


def differences(driver: Driver, before: Counters) -> dict[str, float]:
    names = ("finished", "failed", "aborted", "output_tokens", "ttft_count", "tpot_count",
             "prediction_count", "prediction_error_sum", "predictions_near")  # fmt: skip
    now = driver.core.counters
    changes = {name: getattr(now, name) - getattr(before, name) for name in names}
    return {name: change for name, change in changes.items() if change}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_it_counts_as_failed_and_its_row_as_no_token(depth: int, num_tokens: int) -> None:
    driver = Driver(configured(depth=depth), 32)
    failing = driver.arrive([1] * 9, 20)
    driver.predict(failing, 7)
    for _ in range(num_tokens):
        driver.answer()
        driver.tick()
    core = driver.core
    order, rate = core.instances[0].scheduler.order, dict(vars(core.finish_rate))
    trust, before = order.trust.state(), Counters(**_fields(core.counters))
    driver.answer(fails=FIRST)
    assert driver.ended == {sequence_id(failing, 0): FinishReason.ERROR}
    assert differences(driver, before) == {"failed": 1}
    assert order.trust.state() == trust
    assert vars(core.finish_rate) == rate
    last = story(core, 0, driver.now).marks[-1]
    assert (last.what, last.amount, last.other) == (What.FINISHED, num_tokens, FinishReason.ERROR)
    driver.settle()
    driver.check_nothing_left()


def _fields(counters: Counters) -> dict[str, float]:
    return {name: getattr(counters, name) for name in counters.__struct_fields__}


def test_others_of_the_step_finish_and_teach() -> None:
    driver = Driver(configured(), 32)
    for number in range(2):
        driver.predict(driver.arrive([number] * 9, 3), 3)
    driver.answer()
    driver.answer(fails=FIRST)
    driver.settle()
    counters = driver.core.counters
    assert (counters.failed, counters.finished) == (1, 1)
    assert counters.output_tokens == 1 + 3
    assert counters.prediction_count == counters.tpot_count == 1
    assert counters.prediction_error_sum == 0.0


def test_a_last_token_by_the_limit_that_fails_is_no_answer() -> None:
    driver = Driver(configured(), 32)
    driver.arrive([1] * 9, 1)
    driver.answer(fails=FIRST)
    assert driver.ended == {0: FinishReason.ERROR}
    assert driver.core.counters.output_tokens == driver.core.counters.ttft_count == 0


def test_streams_that_waited_for_its_prompt_compute_their_own() -> None:
    driver = Driver(configured(), 32)
    driver.arrive([1] * 9, 4, n=3)
    driver.answer(fails=FIRST)
    driver.settle()
    assert driver.ended == {
        0: FinishReason.ERROR, 1: FinishReason.LENGTH, 2: FinishReason.LENGTH,
    }  # fmt: skip


def test_what_it_computed_is_offered_to_nobody() -> None:
    """Where its numbers are none, the keys and values that led there may be none either."""
    driver = Driver(configured(), 32)
    for _ in range(2):
        driver.arrive(list(range(12)), 20)
        driver.answer(fails=FIRST)
    assert cached(driver) == [0, 0]
    driver.check_nothing_left()


def test_what_it_shared_is_offered_to_nobody_any_more() -> None:
    driver = Driver(configured(), 32)
    driver.arrive(list(range(12)), 20)
    driver.answer()
    driver.arrive([*range(12), 7], 20)
    driver.answer()
    (step,) = driver.workers[0].pending
    assert step.batch.slots.size == 2
    driver.answer(fails=frozenset({1}))
    driver.arrive([*range(12), 8], 20)
    driver.answer()
    assert cached(driver) == [0, 12, 0]
    driver.settle()
    assert driver.num_outputs(0) == 20, "who has them computes on, and fails or not by itself"
    driver.check_nothing_left()


def cached(driver: Driver) -> list[int]:
    actions = [a for actions in driver.actions for a in actions]
    return [a.num_cached_tokens for a in actions if isinstance(a, Started)]
