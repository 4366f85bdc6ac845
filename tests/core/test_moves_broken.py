"""Moves between instances that meet trouble on the way: nobody waits for ever, or moves in vain."""

from daemon.request import sequence_id
from tests.core.test_migration import PROMPT, home, run_until_tokens, two


def test_one_whose_link_is_gone_when_its_turn_comes_is_computed_again() -> None:
    driver = two(max_running=1)
    first, second = driver.arrive(PROMPT, 2), driver.arrive(PROMPT[::-1], 40)
    source, target = home(driver, second), home(driver, first)
    run_until_tokens(driver, second, 2, source)
    driver.move(sequence_id(second, 0), target)
    driver.land_all()
    while driver.answer(source):
        pass
    assert home(driver, second) == target
    link = driver.links.pop((source, target))
    for end in (source, target):
        driver.break_link(source, target, end, link)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()
