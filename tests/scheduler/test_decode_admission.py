"""Decode admission: who is let in under which rule, and what that spares."""

import pytest
from msgspec.structs import replace

from daemon.scheduler.decode_admission import DECODE_ADMISSIONS
from daemon.scheduler.headroom import Headroom
from daemon.state.request import sequence_id
from tests.core.driver import Driver, configured

BLOCK = 4
PROMPT = 8  # tokens: two blocks


def crowd(rule: str, num_blocks: int, lengths: list[int], **changes: object) -> Driver:
    """Prompts of two blocks, whose answers turn out as long as predicted, come at once."""
    fields = {"policy": "sarathi", "swap": "recompute", "prefix_cache": False, **changes}
    driver = Driver(configured(decode_admission=rule, **fields))  # type: ignore[arg-type]
    driver.lose(0)
    for number, length in enumerate(lengths):
        driver.predict(driver.arrive([number] * PROMPT, length), length)
    driver.ready(0, num_blocks)
    return driver


def seated(driver: Driver) -> list[int]:
    """Who runs."""
    running = (driver.core.sequences[one] for one in sorted(driver.core.sequences))
    return [one.request for one in running if one.slot >= 0]


@pytest.mark.parametrize(
    ("rule", "num_blocks", "who"),
    [
        ("greedy", 7, [0, 1, 2]),
        ("reserve_static", 9, [0]),
        ("reserve_static", 10, [0, 1]),
        ("reserve_static", 12, [0, 1]),
        ("reserve_static", 13, [0, 1, 2]),
        ("reserve_dynamic", 7, [0]),
        ("reserve_dynamic", 8, [0, 1]),
        ("reserve_dynamic", 9, [0, 1, 2]),
    ],
)
def test_who_is_let_in_as_worked_out_by_hand(rule: str, num_blocks: int, who: list[int]) -> None:
    """Answers of 16, 8 and 4 tokens: whole lengths of six, four and three blocks.

    Greedy needs the two blocks of each prompt, and one to spare. Static needs 6, 6 + 4, 6 + 4 + 3.
    Dynamic looks at the moment when the first one is done: of 0 and 1 that is after 8 tokens, when
    they have 4 + 4 blocks, of all three after 4 tokens, when they have 3 + 3 + 3.
    """
    driver = crowd(rule, num_blocks, [16, 8, 4])
    assert seated(driver) == who
    driver.settle()
    driver.check_nothing_left()


def test_with_true_predictions_nobody_or_few_give_way() -> None:
    """Under dynamic those that are left may need more than the first to be done gives back."""
    lengths = [5 + 7 * number % 23 for number in range(24)]
    lost = {}
    for rule in DECODE_ADMISSIONS:
        driver = crowd(rule, 24, lengths)
        driver.settle()
        counters = driver.core.counters
        lost[rule] = counters.preemptions, counters.recomputed_tokens
    assert lost["reserve_static"] == (0, 0)
    assert lost["reserve_static"] <= lost["reserve_dynamic"] < lost["greedy"]


def test_dynamic_lets_more_in_than_static() -> None:
    """Four answers of three blocks, four of eight: static 3 * 4 + 8, dynamic 3 * 8 of 26. At the
    peak two long ones have eight each, and who is short has given its three back.
    """
    running = {}
    for rule in DECODE_ADMISSIONS:
        driver = crowd(rule, 26, [4] * 4 + [24] * 4)
        driver.answer()
        running[rule] = driver.core.num_running
    assert running == {"greedy": 8, "reserve_static": 5, "reserve_dynamic": 8, "reserve_peak": 6}


@pytest.mark.parametrize("rule", DECODE_ADMISSIONS)
@pytest.mark.parametrize("predicted", [1, 10_000])
def test_whoever_is_alone_is_let_in_whatever_is_predicted(rule: str, predicted: int) -> None:
    driver = Driver(configured(decode_admission=rule), 6)
    driver.predict(driver.arrive([1] * PROMPT, 16), predicted)
    driver.predict(driver.arrive([2] * PROMPT, 16), predicted)
    assert 0 in seated(driver)
    driver.settle()
    assert len(driver.ended) == 2
    driver.check_nothing_left()


@pytest.mark.parametrize("rule", DECODE_ADMISSIONS)
def test_whoever_is_alone_does_not_wait_for_blocks_of_one_that_is_gone(rule: str) -> None:
    """They are fenced until the step in flight answers."""
    driver = Driver(configured(decode_admission=rule, depth=2, prefix_cache=False), 12)
    gone = driver.arrive([1] * 20, 8)
    driver.abort(gone)
    assert driver.core.instances[0].scheduler.kv.pool.num_fenced == 5
    driver.arrive([2] * PROMPT, 40)  # all twelve blocks, of which seven are there
    driver.answer()
    assert seated(driver) == [1]
    driver.settle()
    driver.check_nothing_left()


def test_who_was_let_in_stays_when_predictions_grow() -> None:
    """A late prediction closes the door to others alone."""
    driver = crowd("reserve_static", 12, [4, 4, 4])
    assert seated(driver) == [0, 1, 2]
    driver.answer()
    more = driver.arrive([7] * PROMPT, 4)
    driver.predict(more, 4)
    driver.settle()
    driver = Driver(configured("sarathi", decode_admission="reserve_static", swap="recompute"), 12)
    for number in range(2):
        driver.predict(driver.arrive([number] * PROMPT, 40), 4)
    driver.answer()
    assert seated(driver) == [0, 1]
    for number in range(2):
        driver.predict(number, 20)
    driver.predict(driver.arrive([9] * PROMPT, 4), 4)
    driver.answer()
    assert seated(driver) == [0, 1]
    driver.settle()
    assert len(driver.ended) == 3


def test_without_a_prediction_the_limit_counts() -> None:
    driver = Driver(configured(decode_admission="reserve_static"), 12)
    driver.arrive([1] * PROMPT, 24)  # eight blocks
    driver.arrive([2] * PROMPT, 24)
    driver.answer()
    assert seated(driver) == [0]
    driver.settle()


def test_one_whose_only_token_its_prompt_gives_needs_no_room() -> None:
    driver = Driver(configured(decode_admission="reserve_static"), 12)
    driver.arrive([1] * PROMPT, 32)
    driver.arrive([2] * PROMPT, 1)
    driver.answer()
    assert seated(driver) == [0, 1]
    driver.settle()


def test_headroom_counts_those_that_it_has_taken_in() -> None:
    """Of a pool of twelve blocks, six are for one that runs, and four for one more."""
    driver = crowd("reserve_static", 12, [16])
    other = Driver(configured("sarathi"))
    other.lose(0)
    for number in range(2):
        other.predict(other.arrive([number] * PROMPT, 8), 8)
    room = Headroom(driver.core.instances[0].scheduler)
    waiting = list(other.core.instances[0].scheduler.waiting)
    assert [room.take(one) for one in waiting] == [True, False]


def test_each_instance_has_its_own_rule() -> None:
    config = configured(instances=2)
    first, second = config.instances
    second = replace(second, decode_admission="reserve_static")
    driver = Driver(replace(config, instances=(first, second)), 10)
    for number in range(6):
        driver.predict(driver.arrive([number] * PROMPT, 24), 24)
    driver.answer(0)
    driver.answer(1)
    running = [instance.scheduler.num_running for instance in driver.core.instances]
    assert running[0] > running[1] == 1
    driver.settle()
    assert sequence_id(5, 0) in driver.ended
    driver.check_nothing_left()
