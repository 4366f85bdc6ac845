"""What a predicted length changes: the order of those that wait, and whose place is taken."""

import pytest

from daemon.core.values.actions import Submit
from tests.core.driver import Driver, configured

PROMPT = [1, 2, 3, 4, 5]


def srtf(max_running: int = 1) -> Driver:
    config = configured("srtf", max_running=max_running, prefix_cache=False)
    return Driver(config, 100, num_host_blocks=400)


def ends(driver: Driver) -> list[int]:
    """Requests in the order of their ends."""
    driver.settle()
    driver.check_nothing_left()
    return [sequence // 128 for sequence in driver.ended]


def test_who_waits_moves_with_its_prediction() -> None:
    driver = srtf()
    driver.arrive(PROMPT, 2)
    for _ in range(3):
        driver.arrive(PROMPT, 20)
    for request, num_tokens in ((1, 12), (2, 4), (3, 8)):
        driver.predict(request, num_tokens)
    waiting = driver.core.instances[0].scheduler.waiting
    assert [sequence.request for sequence in waiting] == [2, 3, 1]
    driver.predict(1, 2)
    assert [sequence.request for sequence in waiting] == [1, 2, 3]
    assert ends(driver) == [0, 1, 2, 3], "an early end was predicted, not enforced"


def test_equal_predictions_keep_the_order_of_arrival() -> None:
    driver = srtf()
    for _ in range(4):
        driver.arrive(PROMPT, 9)
    for request in (3, 1, 2):
        driver.predict(request, 6)
    assert ends(driver) == [1, 2, 3, 0]


def test_the_shorter_takes_the_longer_ones_place_and_not_an_equal_ones() -> None:
    driver = srtf()
    driver.arrive(PROMPT, 20)
    driver.answer()
    driver.arrive(PROMPT, 19)
    driver.answer()
    assert driver.core.counters.preemptions == 0, "both would end in the same step"
    driver.arrive(PROMPT, 3)
    assert ends(driver) == [2, 0, 1]
    assert driver.core.counters.preemptions == 1


def test_a_prediction_for_who_runs_counts_at_once() -> None:
    """It was seated as a long one; as a short one it keeps its place before who comes then."""
    driver = srtf()
    driver.arrive(PROMPT, 60)
    driver.answer()
    driver.predict(0, 4)
    live = driver.core.sequences[0]
    assert (live.predicted_tokens, live.remaining_tokens) == (4, 3)
    driver.arrive(PROMPT, 20)
    driver.answer()
    assert driver.core.counters.preemptions == 0
    driver.settle()
    assert driver.num_outputs(0) == 60 and driver.num_outputs(128) == 20
    driver.check_nothing_left()


def test_streams_that_await_their_leaders_prompt_keep_the_prediction() -> None:
    driver = srtf(max_running=4)
    driver.arrive(PROMPT * 6, 9, n=3)
    driver.predict(0, 5)
    assert {one.predicted_tokens for one in driver.core.sequences.values()} == {5}
    driver.settle()
    assert len(driver.ended) == 3


@pytest.mark.parametrize("request_number", [0, 7])
def test_a_prediction_for_nobody_changes_nothing(request_number: int) -> None:
    driver = srtf()
    driver.arrive(PROMPT, 2)
    driver.settle()
    driver.predict(request_number, 5)
    assert not any(isinstance(action, Submit) for action in driver.actions[-1])
    driver.check_nothing_left()


def test_a_sequence_longer_than_predicted_has_one_token_left() -> None:
    driver = srtf(max_running=2)
    driver.arrive(PROMPT, 30)
    driver.predict(0, 3)
    for _ in range(6):
        driver.answer()
    driver.lose(0)
    assert driver.core.sequences[0].remaining_tokens == 1
    driver.ready(0, 100)
    driver.settle()
    assert driver.num_outputs(0) == 30


@pytest.mark.parametrize("policy", ["sarathi", "vllm", "srtf"])
def test_stages_work_on_distinct_sequences(policy: str) -> None:
    """Two steps in flight, each with half of those that decode; the Driver checks the rest."""
    driver = Driver(configured(policy, stages=2, depth=2, max_batch_tokens=64), 100)
    for number in range(4):
        driver.arrive([number] * 5, 20)
    sizes = []
    while driver.answer():
        pending = driver.workers[0].pending
        slots = [set(step.batch.slots.tolist()) for step in pending if not step.batch.fed.any()]
        if len(slots) == 2:
            assert not slots[0] & slots[1]
            sizes.append((len(slots[0]), len(slots[1])))
    assert (2, 2) in sizes
    assert all(driver.num_outputs(sequence) == 20 for sequence in driver.ended)
