"""What a snapshot tells of an instance's memory: loans, both queues, groups, the peak, steps."""

import msgspec
import pytest

from daemon.core.values.snapshot import STEPS_SHOWN, InstanceStatus
from daemon.core.view.view import snapshot
from daemon.scheduler.policies import POLICIES
from daemon.state.reserved import (
    MAX_GROUPS_SHOWN,
    MAX_LOANS_SHOWN,
    LendingStatus,
    LoanStatus,
    ReservedStatus,
)
from daemon.wire.columns import encoder, int32
from tests.core.driver import Driver, configured

KEEPING = {"synced-d", "synced-sd", "synced-sdo", "synced", "packed"}


def driver_of(policy: str, num_blocks: int, **changes: object) -> Driver:
    return Driver(configured(policy, prefix_cache=False, **changes), num_blocks)


def arrive(driver: Driver, length: int, answer: int) -> int:
    request = driver.arrive([driver.requests % 7] * length, answer)
    driver.predict(request, answer)
    return request * 128


def told(driver: Driver) -> InstanceStatus:
    (one,) = snapshot(driver.core, driver.now).instances
    return one


def kept(driver: Driver) -> ReservedStatus:
    reserved = told(driver).reserved
    assert reserved is not None
    return reserved


def loans(driver: Driver) -> LendingStatus:
    lending = kept(driver).lending
    assert lending is not None
    return lending


def test_who_lends_to_whom_how_much_and_until_which_token() -> None:
    """The lender has 26 of 30 blocks reserved; its borrower lacks eight."""
    driver = driver_of("synced", 30)
    lender = arrive(driver, 8, 96)
    driver.answer()
    driver.answer()
    assert loans(driver) == LendingStatus()
    borrower = arrive(driver, 4, 30)
    while not loans(driver).num_loans:
        driver.answer()
    lending = loans(driver)
    assert (lending.num_hosts, lending.num_loans, lending.num_blocks) == (1, 1, 8)
    above, below = lending.shown
    assert (above.sequence, above.host, above.num_lent) == (lender, -1, 8)
    assert (above.num_reserved, above.due_token) == (26, -1)
    assert (below.sequence, below.host, below.num_borrowed) == (borrower, lender, 8)
    assert below.due_token == (26 - 8) * 4, "the lender computes up to there without its borrower"
    assert below.num_held >= 1 and above.num_tokens < below.due_token
    while borrower in driver.alive:
        driver.answer()
    assert loans(driver).num_loans == 0 and loans(driver).shown == ()
    driver.settle()


def test_borrowers_stand_below_their_lenders_and_theirs_below_them() -> None:
    driver = driver_of("synced", 64, max_running=8, max_len=256)
    arrive(driver, 8, 230)
    driver.answer()
    driver.answer()
    for answer in (90, 30, 12):
        arrive(driver, 4, answer)
    depths: list[int] = []
    while driver.alive:
        above: dict[int, int] = {}
        for row in loans(driver).shown:
            assert row.host == -1 or row.host in above, "a lender comes before its borrowers"
            above[row.sequence] = above.get(row.host, -1) + 1
        lent = {row.sequence: row.num_lent for row in loans(driver).shown}
        for row in loans(driver).shown:
            assert lent[row.sequence] == _borrowed_from(row, loans(driver))
        depths += above.values()
        driver.answer()
    assert max(depths) >= 2, "a borrower that lends itself"
    driver.check_nothing_left()


def _borrowed_from(lender: LoanStatus, lending: LendingStatus) -> int:
    return sum(row.num_borrowed for row in lending.shown if row.host == lender.sequence)


def test_answers_that_wait_with_their_prompts_are_ready_and_stand_in_groups() -> None:
    driver = driver_of("synced-sd", 24)
    arrive(driver, 8, 80)
    for _ in range(2):
        driver.answer()
    for _ in range(3):
        arrive(driver, 4, 40)
    for _ in range(4):
        driver.answer()
    view = snapshot(driver.core, driver.now)
    reserved = kept(driver)
    ready = [one for one in view.sequences if one.state == "ready"]
    assert reserved.ready == len(ready) > 0
    assert reserved.ready_blocks == sum(one.num_blocks for one in ready)
    assert reserved.num_groups == len(reserved.groups) == 2
    first = next(one for one in reserved.groups if one.num_tokens == 80)
    assert (first.num_begun, first.num_ready) == (1, 0)
    assert sum(one.num_ready for one in reserved.groups) == reserved.ready
    driver.settle()
    assert kept(driver) == ReservedStatus()


def test_the_policy_that_packs_tells_its_peak_and_no_loans() -> None:
    """Eight tokens and eighty to come are 88 tokens together: 22 blocks, and half a block."""
    driver = driver_of("packed", 64)
    arrive(driver, 8, 80)
    for _ in range(3):
        driver.answer()
    reserved = kept(driver)
    assert reserved.lending is None and reserved.peak is not None
    assert reserved.peak.num_blocks == 23
    table = driver.core.instances[0].scheduler.slots
    assert reserved.peak.num_steps == 88 - int(table.known[0])
    before = reserved.peak.num_blocks
    arrive(driver, 8, 80)
    for _ in range(3):
        driver.answer()
    later = kept(driver).peak
    assert later is not None and later.num_blocks > before
    driver.settle()


def test_written_is_what_is_computed_of_what_is_held() -> None:
    driver = driver_of("sarathi", 16)
    arrive(driver, 9, 8)
    driver.answer()
    one = told(driver)
    table = driver.core.instances[0].scheduler.slots
    assert one.kv_held == 3
    assert one.kv_written == int(table.computed[0]) / 64 > 0
    driver.settle()
    assert told(driver).kv_written == 0


def test_shared_blocks_are_written_once() -> None:
    driver = Driver(configured("sarathi"), 32)
    driver.arrive(list(range(12)), 12, n=3)
    while driver.core.num_running < 3:
        driver.answer()
    while driver.core.num_running == 3:
        one = told(driver)
        assert one.kv_written * 32 <= one.kv_held
        assert one.kv_held - one.kv_written * 32 < 3, "only the last block of each is not full"
        driver.answer()


def test_the_newest_steps_are_told_with_their_budget() -> None:
    driver = driver_of("sarathi", 64)
    assert told(driver).newest_tokens == ()
    arrive(driver, 20, 100)
    for _ in range(4):
        driver.answer()
    assert told(driver).newest_tokens == (16, 4, 1, 1, 1) and told(driver).batch_budget == 32
    driver.settle()
    assert told(driver).newest_tokens == (1,) * STEPS_SHOWN
    driver.lose(0)
    assert told(driver).newest_tokens == ()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_only_policies_that_keep_by_predictions_tell_of_it(policy: str) -> None:
    driver = driver_of(policy, 24)
    for _ in range(3):
        arrive(driver, 8, 20)
    driver.answer()
    assert (told(driver).reserved is not None) == (policy in KEEPING)
    driver.settle()


def test_looking_changes_nothing_that_is_done() -> None:
    """With true and false predictions: the same actions, whoever looks between them."""
    lives = []
    for looks in (False, True):
        driver = driver_of("synced", 40, max_running=6)
        for number in range(12):
            driver.predict(driver.arrive([number] * 6, 60), 8 + 5 * (number % 9))
            driver.answer()
            if looks:
                snapshot(driver.core, driver.now)
        while driver.alive:
            driver.answer()
            if looks:
                snapshot(driver.core, driver.now)
        lives.append([encoder().encode(actions) for actions in driver.actions])
    assert lives[0] == lives[1]


def test_a_snapshot_tells_so_many_loans_and_groups_at_most() -> None:
    """A hundred short answers beside some long ones."""
    driver = driver_of(
        "synced", 4000, max_running=160, max_batch_tokens=512, max_len=4096, max_waiting=400
    )
    for _ in range(6):
        arrive(driver, 4, 2400 + driver.requests * 60)
    for _ in range(4):
        driver.answer()
    for number in range(120):
        arrive(driver, 4, 20 + 4 * number)
    most_loans = most_groups = 0
    for _ in range(30):
        driver.answer()
        reserved = kept(driver)
        assert reserved.lending is not None
        assert len(reserved.lending.shown) <= MAX_LOANS_SHOWN
        assert len(reserved.groups) <= MAX_GROUPS_SHOWN
        most_loans = max(most_loans, reserved.lending.num_loans)
        most_groups = max(most_groups, reserved.num_groups)
    assert most_loans > MAX_LOANS_SHOWN and most_groups > MAX_GROUPS_SHOWN
    size = len(encoder().encode(msgspec.structs.replace(told(driver), block_map=int32())))
    assert size < 4096, f"{size} bytes, beside the map"
