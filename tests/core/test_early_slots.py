"""A stream from elsewhere gets a slot between two steps, where that takes nobody's turn."""

from daemon.state.request import sequence_id
from tests.core.driver import Driver
from tests.core.test_migration import PROMPT, home, home_slot, run_until_tokens, sends, two


def moved(driver: Driver, count: int, length: int) -> int:
    """A stream of instance a's that has just left for b, where so many prompts came before it."""
    driver.drain_one(0)
    for number in range(count):
        driver.arrive([number] * length, 4)
    driver.resume_one(0)
    request = driver.arrive(PROMPT, 12)
    run_until_tokens(driver, request, 2, 0)
    driver.move(sequence_id(request, 0), 1)
    driver.answer(0)
    driver.land_all()
    driver.answer(0)
    return request


def test_a_stream_from_elsewhere_gets_a_slot_before_prompts_that_came_before_it() -> None:
    """Those that wait behind the step's budget keep what the first of them needs."""
    driver = two(num_blocks=200)
    request = moved(driver, 5, 60)
    waiting = driver.core.instances[1].scheduler.waiting
    assert waiting and driver.workers[1].pending, "no step of the target has ended"
    assert home(driver, request) == 1 and home_slot(driver, request)
    assert sends(driver)[-1].at_once, "its KV comes while that step computes"
    driver.settle()
    driver.check_nothing_left()


def test_a_stream_from_elsewhere_leaves_the_last_room_to_who_came_before() -> None:
    driver = two(num_blocks=24, max_len=64)
    request = moved(driver, 3, 40)
    ahead = driver.core.instances[1].scheduler.waiting.first
    assert ahead is not driver.core.sequences[sequence_id(request, 0)]
    assert home(driver, request) == 1 and not home_slot(driver, request)
    driver.settle()
    driver.check_nothing_left()
