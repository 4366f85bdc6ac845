"""Pauses of answers that have begun: how long each was, and why."""

import pytest

from daemon.core.view.view import story
from daemon.state.pause import BOUNDS_S, NO_PAUSES, Cause, Pauses, one_more
from daemon.state.request import State, sequence_id
from daemon.state.story import What
from tests.core.driver import Driver, configured


def pauses(driver: Driver, cause: Cause) -> Pauses:
    return driver.core.counters.pauses[cause]


def displaced(swap: str) -> tuple[Driver, int]:
    """One that has a token, and gives way to a better one."""
    config = configured("priority", swap=swap)
    driver = Driver(config, 8, num_host_blocks=16, copy_block_s=1e-9, token_s=1.0)
    humble = sequence_id(driver.arrive(list(range(16)), 12), 0)
    driver.answer()
    driver.arrive(list(range(100, 124)), 4, priority=-5)
    while driver.core.sequences[humble].state is not State.PREEMPTED:
        driver.answer()
    return driver, humble


@pytest.mark.parametrize(
    ("swap", "cause"), [("recompute", Cause.RECOMPUTED), ("reactive", Cause.SWAPPED)]
)
def test_a_pause_is_from_giving_way_to_the_next_token(swap: str, cause: Cause) -> None:
    driver, humble = displaced(swap)
    sequence = driver.core.sequences[humble]
    num_tokens = driver.num_outputs(humble)
    since_s = sequence.paused_since_s
    assert since_s == driver.now and sequence.pause_cause is cause
    assert story(driver.core, humble, driver.now + 2.0).paused_s == pytest.approx(2.0)
    while driver.num_outputs(humble) == num_tokens:
        assert driver.answer() or driver.copied()
    length_s = driver.now - since_s
    assert length_s > 0.0
    driver.settle()
    told = story(driver.core, humble, driver.now)
    marks = told.marks
    assert [mark.what for mark in marks].count(What.RESUMED) == 1
    (back,) = (mark for mark in marks if mark.what == What.RESUMED)
    assert back.time_s - since_s == length_s
    assert (back.amount, back.other) == (round(1000 * length_s), cause)
    assert (told.paused_s, told.behind_prompts_s) == (length_s, 0.0)
    assert pauses(driver, cause).count == 1 and pauses(driver, cause).sum_s == length_s
    others = [one for one in Cause if one is not cause]
    assert all(pauses(driver, one) == Pauses() for one in others)


def test_who_gives_way_before_its_first_token_does_not_pause() -> None:
    config = configured("priority", swap="recompute")
    driver = Driver(config, 8)
    humble = sequence_id(driver.arrive(list(range(20)), 8), 0)
    driver.arrive(list(range(100, 124)), 4, priority=-5)
    driver.answer()  # a chunk of the first one's prompt, and no token
    assert driver.core.sequences[humble].preemptions == 1
    driver.settle()
    assert driver.core.counters.pauses == NO_PAUSES


def test_a_lost_worker_makes_its_sequences_pause_once() -> None:
    driver = Driver(configured(), 32)
    sequence = sequence_id(driver.arrive(list(range(12)), 8), 0)
    driver.answer()
    driver.lose(0)
    lost_s = driver.now
    driver.now += 5.0
    driver.ready(0, 32)
    driver.answer()
    assert pauses(driver, Cause.WORKER_LOST).sum_s == driver.now - lost_s > 5.0
    driver.settle()
    assert pauses(driver, Cause.WORKER_LOST).count == 1
    assert story(driver.core, sequence, driver.now).paused_s > 5.0


def test_a_client_that_goes_away_ends_the_pause_too() -> None:
    driver, _ = displaced("recompute")
    driver.now += 3.0
    driver.abort(0)
    assert pauses(driver, Cause.RECOMPUTED) == Pauses().and_(3.0)


@pytest.mark.parametrize("policy", ["vllm", "sarathi"])
def test_who_decodes_pauses_behind_a_long_prompt(policy: str) -> None:
    driver = Driver(configured(policy), 64, step_s=0.01)
    old = sequence_id(driver.arrive(list(range(8)), 40), 0)
    while driver.num_outputs(old) < 3:
        driver.answer()
    since_s = driver.now
    new = sequence_id(driver.arrive(list(range(100, 116)), 40), 0)
    driver.answer()
    if driver.num_outputs(old) == 4:  # the step that was in flight when the prompt came
        since_s = driver.now
    held = driver.num_outputs(old)
    driver.step_s = 0.5
    driver.answer()
    driver.step_s = 0.01
    while driver.num_outputs(old) == held:
        driver.answer()
    gap_s = driver.now - since_s
    found = pauses(driver, Cause.BEHIND_PROMPT)
    assert found.count == 1  # the new one has not waited for itself
    assert 0.4 < found.sum_s < gap_s
    shown = story(driver.core, old, driver.now)
    assert shown.paused_s == shown.behind_prompts_s == pytest.approx(found.sum_s)
    assert story(driver.core, new, driver.now).paused_s == 0.0
    driver.settle()
    assert story(driver.core, old, driver.now).behind_prompts_s == pytest.approx(found.sum_s)
    assert pauses(driver, Cause.BEHIND_PROMPT) == found


def test_a_prompt_that_nobody_notices_makes_no_pause() -> None:
    driver = Driver(configured("vllm"), 64, step_s=0.01)
    for number in range(6):
        driver.arrive([number] * 16, 6)
        driver.answer()
    driver.settle()
    assert driver.core.counters.pauses == NO_PAUSES


def test_lengths_are_counted_up_to_their_bounds() -> None:
    found = one_more(NO_PAUSES, Cause.SWAPPED, BOUNDS_S[0])
    found = one_more(found, Cause.SWAPPED, BOUNDS_S[-1] + 1, 2)
    expected = (1, *[0] * (len(BOUNDS_S) - 1), 2)
    assert found[Cause.SWAPPED] == Pauses(3, BOUNDS_S[0] + 2 * (BOUNDS_S[-1] + 1), expected)
    assert found[1:] == NO_PAUSES[1:]


def test_a_pause_ends_though_long_prompts_fill_every_step() -> None:
    """Prompts that have begun go on, but not before a stream whose pause has to end."""
    step_s, max_pause_s = 0.01, 0.2
    config = configured("gittins", max_running=2, max_pause_s=max_pause_s, max_len=1024)
    driver = Driver(config, 600, step_s=step_s, num_host_blocks=600, copy_block_s=1e-6)
    streams = [sequence_id(driver.arrive([number] * 8, 900, priority=5), 0) for number in range(2)]
    while not all(driver.num_outputs(one) for one in streams):
        driver.answer()
    for number in range(2):  # each takes 60 steps to read
        driver.arrive([100 + number] * 960, 4, priority=-5)
    sequences = [driver.core.sequences[one] for one in streams]
    while not all(one.state is State.PREEMPTED for one in sequences):
        driver.copied()
        assert driver.answer()
    for one in sequences:
        while driver.core.sequences[one.id].paused_since_s >= 0.0:
            assert driver.now - one.paused_since_s <= max_pause_s + 4 * step_s
            driver.copied()
            assert driver.answer()
    driver.settle(20_000)
    driver.check_nothing_left()
