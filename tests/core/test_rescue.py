"""A dead worker's sequences go on elsewhere at once, or in order as there is room."""

from daemon.state.request import sequence_id
from tests.core.driver import Driver
from tests.core.test_migration import home, home_slot, two

PROMPT = 22
ANSWER = 8  # with the prompt, 8 blocks of 4


def prompt(number: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [100 * number + place for place in range(3, 3 + PROMPT)]


def decoding(driver: Driver, counts: tuple[int, int]) -> list[list[int]]:
    """So many that have begun to answer at each instance, the longest there first."""
    at: list[list[int]] = [[], []]
    for number in range(sum(counts)):
        request = driver.arrive(prompt(number), ANSWER)
        at[home(driver, request)].append(request)
    while any(not driver.num_outputs(sequence_id(one, 0)) for place in at for one in place):
        assert driver.answer(0) | driver.answer(1)
    assert [len(one) for one in at] == list(counts)
    return at


def test_a_survivor_computes_them_with_its_next_step() -> None:
    driver = two(num_blocks=80)
    dead, others = decoding(driver, (2, 2))
    planned = len(driver.workers[1].pending)
    driver.lose(0)
    assert all(home(driver, one) == 1 for one in dead)
    for _ in range(planned):
        driver.answer(1)
    assert all(home_slot(driver, one) for one in dead)
    (batch,) = [one.batch for one in driver.workers[1].pending][:1]
    slots = {driver.core.sequences[sequence_id(one, 0)].slot for one in dead}
    assert slots & set(batch.slots.tolist()), "what it plans next computes one of them"
    driver.settle()
    assert not driver.alive and others
    driver.check_nothing_left()


def test_a_survivor_without_memory_takes_them_in_the_order_of_their_arrival() -> None:
    driver = two(num_blocks=20)
    dead, others = decoding(driver, (2, 2))
    driver.lose(0)
    assert all(home(driver, one) == 1 and not home_slot(driver, one) for one in dead)
    told = {one: driver.num_outputs(sequence_id(one, 0)) for one in dead}
    order: list[int] = []
    while sequence_id(dead[-1], 0) in driver.alive:
        assert driver.answer(1)
        order += [
            one
            for one in dead
            if one not in order and driver.num_outputs(sequence_id(one, 0)) > told[one]
        ]
    assert order == dead and others
    driver.settle()
    driver.check_nothing_left()
