"""Moves between instances that meet trouble on the way: nobody waits for ever, or moves in vain."""

import msgspec

from daemon.core.core import Core
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.state.request import sequence_id
from daemon.state.role import Role
from tests.core.driver import Driver, configured
from tests.core.test_migration import PROMPT, home, run_until_tokens, sends, two


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


def test_one_whose_transfer_and_both_ends_are_lost_waits_for_it_no_more() -> None:
    driver = two()
    request = driver.arrive(PROMPT, 40)
    source = home(driver, request)
    target = 1 - source
    run_until_tokens(driver, request, 2, source)
    driver.move(sequence_id(request, 0), target)
    driver.land_all()  # what goes ahead
    while driver.answer(source):
        pass
    sequence = driver.core.sequences[sequence_id(request, 0)]
    assert sequence.residence.transfer and home(driver, request) == target
    driver.lose(source, late=True)
    driver.lose(target)
    assert not sequence.residence.transfer
    for instance in (source, target):
        driver.ready(instance, 40)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()


def test_one_that_waits_is_not_moved_to_where_it_cannot_run() -> None:
    driver = two(max_running=1)
    requests = [driver.arrive(PROMPT, 8) for _ in range(4)]
    waiting = [one for one in requests if driver.core.sequences[one << 7].slot < 0]
    driver.lose(1)
    for request in waiting:
        driver.move(sequence_id(request, 0), 1)
        assert home(driver, request) == 0
    driver.settle()
    assert not driver.alive


def test_a_prompt_stays_where_it_is_once_roles_want_it_there() -> None:
    """The handoff was begun for roles that were changed before the prompt was computed."""
    for flips in ([(0, Role.MIXED)], [(1, Role.PREFILL), (0, Role.DECODE)]):
        driver = two((Role.PREFILL, Role.DECODE))
        driver.arrive(PROMPT, 8)
        driver.answer(0)
        assert driver.core.migrator.migrations
        for instance, role in flips:
            driver.flip(instance, role)
        driver.settle()
        assert driver.core.counters.handoffs == 0
        driver.check_nothing_left()


def test_a_restored_core_knows_how_long_links_take() -> None:
    """By that it chooses what goes layer by layer, so a replay would act otherwise."""
    driver = two((Role.PREFILL, Role.DECODE))
    driver.arrive(PROMPT, 4)
    driver.settle()
    core = Core(driver.config)
    restore(core, checkpoint(driver.core, driver.now))
    links, again = (one.migrator.transfers.links for one in (driver.core, core))
    assert links.time(0, 1).predict_s(5) > 0.0
    assert again.time(0, 1).predict_s(5) == links.time(0, 1).predict_s(5)


def test_one_that_fails_forgets_no_blocks_that_another_sends() -> None:
    """Its own have arrived, all wrong; the other's are the same and still on their way."""
    driver = two()
    request = driver.arrive(PROMPT, 12, n=2)
    first, second = sequence_id(request, 0), sequence_id(request, 1)
    while driver.num_outputs(second) < 2:
        driver.answer(0)
    driver.move(first, 1)
    (sent,) = sends(driver)
    driver.land(sent.transfer, 1, 0)
    driver.move(second, 1)
    assert [one.digests for one in driver.core.migrator.transfers] != [[], []]
    driver.answer(0, fails=frozenset({0}))
    assert first not in driver.alive and second in driver.alive
    driver.settle()
    driver.check_nothing_left()


def test_a_transfer_that_a_departing_client_calls_off_has_not_failed() -> None:
    config = configured("gittins", 2, max_len=128)
    roles = Role.PREFILL, Role.DECODE
    pairs = zip(config.instances, roles, strict=True)
    names = tuple(msgspec.structs.replace(one, role=role) for one, role in pairs)
    driver = Driver(msgspec.structs.replace(config, instances=names), 40)
    driver.link_all()
    for number in range(3):
        request = driver.arrive([number] * 30, 30)
        while not driver.sendings:
            driver.answer(0)
        driver.abort(request)
        for sending in list(driver.sendings):
            for end in sorted(driver.sendings[sending].ends, reverse=True):
                driver.land(sending, end, 1)
        driver.settle()
    counters = driver.core.counters
    assert (counters.aborted, counters.handoffs_failed) == (3, 0)
