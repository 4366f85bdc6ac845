"""Drafting in plans: behind known tokens alone, where blocks, budget and limits let it."""

import numpy as np

from daemon.core.values.actions import Submit
from daemon.state.batch import Batch
from tests.core.driver import Driver, configured

PROMPT = [1, 2, 3, 4, 5]


def submitted(driver: Driver) -> list[Batch]:
    """The plans that the newest event brought."""
    return [one.batch for one in driver.actions[-1] if isinstance(one, Submit)]


def running(driver: Driver, num: int = 1, max_tokens: int = 60) -> Driver:
    """All of them have their first token, nobody has offered anything."""
    for number in range(num):
        driver.arrive([number, *PROMPT], max_tokens)
    for _ in range(num + 1):
        driver.answer()
    return driver


def drafts(driver: Driver, offers: tuple[int, ...], accepted: tuple[int, ...] = (0,)) -> list[int]:
    """Those of the plan that follows an answer."""
    driver.answer(
        offers=offers, counts=accepted if driver.workers[0].pending[0].batch.drafts.size else ()
    )
    (batch,) = submitted(driver)
    return batch.drafts.tolist()


def test_an_offer_is_drafted_in_the_next_plan() -> None:
    driver = running(Driver(configured(block_size=16), 32))
    assert drafts(driver, (3,)) == [3]
    assert drafts(driver, (2,), accepted=(3,)) == [2]
    before = driver.num_outputs(0)
    assert drafts(driver, (), accepted=(1,)) == []
    assert driver.num_outputs(0) == before + 2
    counters = driver.core.counters
    assert (counters.drafts, counters.draft_tokens, counters.accepted_tokens) == (2, 5, 4)
    driver.settle()
    assert driver.num_outputs(0) == 60
    driver.check_nothing_left()


def test_work_counts_drafts() -> None:
    driver = running(Driver(configured(block_size=16), 32), 2)
    driver.answer(offers=(3, 0))
    (action,) = (one for one in driver.actions[-1] if isinstance(one, Submit))
    assert action.batch.starts.tolist() == [9, 8]
    assert action.work.num_decodes == action.work.num_samples == action.batch.num_tokens == 5
    assert action.work.decode_context == 10 + 9 + 11 + 12 + 13


def test_limits_bound_drafts() -> None:
    driver = running(Driver(configured(block_size=16), 32), max_tokens=6)
    assert driver.num_outputs(0) == 2
    assert drafts(driver, (9,)) == [2], "three tokens are left, one of them is drawn anyway"
    assert drafts(driver, (9,), accepted=(0,)) == [1]
    driver.settle()
    assert driver.num_outputs(0) == 6


def test_the_budget_bounds_drafts() -> None:
    driver = running(Driver(configured(block_size=16, max_batch_tokens=8, prefill_chunk=8), 32), 3)
    assert sum(drafts(driver, (4, 4, 4))) == 5


def test_blocks_are_taken_only_where_nobody_waits() -> None:
    def last(num_blocks: int) -> tuple[Driver, list[int]]:
        driver = running(Driver(configured(block_size=8), num_blocks), max_tokens=16)
        while int(driver.core.instances[0].scheduler.slots.computed[0]) % 8 != 6:
            driver.answer()
        return driver, drafts(driver, (4,))

    assert last(32)[1] == [4]
    assert last(3)[1] == [1], "the last block is kept for others"
    driver, _ = last(32)
    driver.settle()
    driver.check_nothing_left()


def test_no_step_is_planned_beside_one_that_drafts() -> None:
    driver = running(Driver(configured(block_size=16, depth=2), 32))
    driver.tick()
    assert len(driver.workers[0].pending) == 2
    driver.answer(offers=(3,))
    driver.tick()
    assert len(driver.workers[0].pending) == 1, "its offer waits until nothing is in flight"
    driver.answer(offers=(3,))
    assert submitted(driver)[0].drafts.tolist() == [3]
    driver.tick()
    assert len(driver.workers[0].pending) == 1
    driver.answer(counts=(2,))
    driver.tick()
    assert len(driver.workers[0].pending) == 2, "nothing is offered any more"
    driver.settle()
    driver.check_nothing_left()


def test_offers_that_are_not_drawn_are_left_and_tried_again() -> None:
    """A draft takes a fifth of a step here, and none is ever accepted."""
    driver = running(Driver(configured(block_size=16), 64, step_s=0.01), max_tokens=120)
    asked = []
    for _ in range(110):
        pending = driver.workers[0].pending[0].batch
        num_drafts = int(pending.drafts.sum())
        step_s = 0.01 + 0.002 * num_drafts
        driver.answer(offers=(4,), counts=(0,) if num_drafts else (), step_s=step_s)
        asked.append(num_drafts)
    early, late = np.array(asked[:20]), np.array(asked[20:])
    assert early.any() and 0 < np.count_nonzero(late) < late.size // 10
    driver.settle()
    driver.check_nothing_left()


def test_drafts_that_a_worker_left_out_were_not_refused() -> None:
    """As where its step might have drawn others beside them: it counts no row's tokens then."""
    driver = running(Driver(configured(block_size=16), 32))
    record = driver.core.instances[0].scheduler.drafting.record
    before = record.share(3)
    assert drafts(driver, (3,)) == [3]
    driver.answer(counts=())
    assert record.share(3) == before and driver.core.counters.draft_tokens == 0
    driver.settle()
    driver.check_nothing_left()


def test_what_failed_is_forgotten_beside_one_that_drafts() -> None:
    """A draft takes a fifth of a step; whoever is offered two was refused often."""
    driver = running(Driver(configured(block_size=16, max_len=1024), 128, step_s=0.01), 2, 900)
    record, shares = driver.core.instances[0].scheduler.drafting.record, []
    for _ in range(40):
        record.learn(2, 2, 0)
    for _ in range(40):
        rows = driver.workers[0].pending[0].batch.drafts.tolist() or [0, 0]
        counts = (rows[0] + 1, 1) if any(rows) else ()
        driver.answer(offers=(4, 2), counts=counts, step_s=0.01 + 0.002 * sum(rows))
        if rows[0] and not rows[1]:
            shares.append(record.share(2))
    assert len(shares) > 30 and shares == sorted(shares) and shares[-1] > shares[0]
    driver.settle()


def test_offers_of_another_life_are_worth_nothing() -> None:
    driver = running(Driver(configured(block_size=16), 32))
    driver.answer(offers=(3,))
    driver.lose(0)
    driver.ready(0, 32)
    (batch,) = submitted(driver)
    assert not batch.drafts.size
    driver.settle()
    assert driver.num_outputs(0) == 60


def test_sampled_rows_bound_drafts_as_tokens_do() -> None:
    """The worker leaves all drafts out where the rows of its head would be computed otherwise."""
    config = configured(block_size=16, max_batch_tokens=32, prefill_chunk=8)
    driver = running(Driver(config, 64))
    driver.core.instances[0].scheduler.drafting.same_until = (1, 32)
    driver.arrive([7] * 40, 4)
    driver.answer()
    (chunked,) = submitted(driver)
    assert chunked.num_tokens == 9 and chunked.samples.sum() == 1
    assert drafts(driver, (4,)) == [], "one row is sampled alone as it is beside none"
    driver.settle()
    driver.check_nothing_left()


def test_no_step_is_so_long_that_its_own_tokens_get_other_numbers() -> None:
    driver = running(Driver(configured(block_size=16), 64), 2)
    drafting = driver.core.instances[0].scheduler.drafting
    drafting.same_until = (1, 4, 9)
    assert sum(drafts(driver, (8, 8))) == 2, "four tokens, two of them drafted"
    assert [drafting.room(count) for count in (1, 2, 4, 5, 9, 10, 40)] == [0, 2, 0, 4, 0, 22, -8]
    drafting.same_until = (2, 4)
    assert not drafting.looks
    driver.settle()
    driver.check_nothing_left()
