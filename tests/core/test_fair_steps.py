"""Nobody waits for ever: behind short steps, slow transfers, or more slots than a step's tokens."""

import msgspec
import pytest

from daemon.state.role import Role
from tests.core.driver import Driver, configured

MAX_PAUSE_S, STEP_S = 4.0, 0.03


def instances(policy: str, *roles: Role, **changes: object) -> Driver:
    """Linked instances of these roles, with far more memory than is wanted."""
    limits: dict[str, object] = {
        "max_len": 512,
        "max_running": 64,
        "max_batch_tokens": 64,
        "prefill_chunk": 64,
        "prefix_cache": False,
        "max_pause_s": MAX_PAUSE_S,
    }
    config = configured(policy, len(roles), **{**limits, **changes})
    named = zip(config.instances, roles, strict=True)
    homes = tuple(msgspec.structs.replace(one, role=role) for one, role in named)
    driver = Driver(msgspec.structs.replace(config, instances=homes), 2000, STEP_S)
    driver.link_all()
    return driver


def go_on(driver: Driver, num_steps: int) -> None:
    for _ in range(num_steps):
        for instance in range(len(driver.core.instances)):
            driver.answer(instance)
        driver.land_all()


@pytest.mark.parametrize("policy", ["gittins", "sarathi"])
def test_a_handoff_in_each_step_keeps_no_prompt_out(policy: str) -> None:
    driver = instances(policy, Role.PREFILL, Role.MIXED)
    driver.arrive([1] * 8, 400)
    go_on(driver, 10)
    driver.arrive([3] * 8, 6)
    request = driver.arrive([2] * 24, 5)
    sequence = request * 128
    driver.move(sequence, 1)
    num_steps = 0
    while sequence in driver.alive and not driver.num_outputs(sequence):
        driver.arrive([3] * 8, 6)
        go_on(driver, 1)
        num_steps += 1
        assert num_steps < 8, "it waits behind short steps"


def test_a_handoff_in_each_step_keeps_no_rescued_stream_out() -> None:
    driver = instances("gittins", Role.PREFILL, Role.DECODE, Role.DECODE)
    driver.drain_one(1)
    streams = [driver.arrive([k] * 8, 300) * 128 for k in range(3)]
    go_on(driver, 20)
    driver.resume_one(1)
    assert {driver.core.sequences[one].instance for one in streams} == {2}
    driver.arrive([99] * 8, 400)
    go_on(driver, 6)
    driver.arrive([3] * 8, 6)
    driver.lose(2)
    before = {one: driver.num_outputs(one) for one in streams}
    lost_s = driver.now
    while any(driver.num_outputs(one) == before[one] for one in streams):
        driver.arrive([3] * 8, 6)
        go_on(driver, 1)
        assert driver.now - lost_s <= 1.0, "they wait behind short steps"


@pytest.mark.parametrize("policy", ["gittins", "sarathi"])
def test_one_that_waits_for_anothers_transfer_holds_up_no_newcomer(policy: str) -> None:
    driver = instances(policy, Role.MIXED, Role.MIXED, prefix_cache=True, max_batch_tokens=256)
    driver.drain_one(1)
    first = driver.arrive([1] * 200, 200) * 128
    second = driver.arrive([1] * 200 + [7] * 3, 200) * 128
    for _ in range(6):
        driver.answer(0)
    driver.resume_one(1)
    driver.move(first, 1)
    driver.answer(0)
    driver.answer(0)
    assert len(driver.sendings) == 1, "the shared blocks are on their way"
    driver.move(second, 1)
    for _ in range(3):
        driver.answer(0)
    assert driver.core.sequences[second].instance == 1
    newcomer = driver.arrive([5] * 20, 5) * 128
    driver.move(newcomer, 1)
    for _ in range(3):
        driver.tick()
        driver.answer(1)
        driver.answer(0)
    assert driver.core.sequences[second].slot < 0, "it waits for what is on its way"
    assert driver.num_outputs(newcomer) > 0
    driver.land_all()
    before = driver.num_outputs(second)
    go_on(driver, 4)
    assert driver.num_outputs(second) > before


@pytest.mark.parametrize("policy", ["gittins", "sarathi"])
def test_rows_go_round_where_more_run_than_a_step_has_tokens(policy: str) -> None:
    budget = 8
    driver = instances(policy, Role.PREFILL, Role.DECODE, max_batch_tokens=budget)
    streams = []
    for _ in range(20):
        streams.append(driver.arrive([1] * 4, 100) * 128)
        go_on(driver, 1)
    go_on(driver, 4)
    table = driver.core.instances[1].scheduler.slots
    assert table.num_running > budget
    before = {one: driver.num_outputs(one) for one in streams}
    go_on(driver, 10)
    drawn = {one: driver.num_outputs(one) - before[one] for one in streams}
    assert min(drawn.values()) >= 10 * budget // len(streams) - 1


def test_decodes_that_use_up_the_budget_leave_a_share_to_a_stream_that_is_due() -> None:
    budget = 8
    driver = instances("gittins", Role.MIXED, Role.MIXED, max_batch_tokens=budget)
    driver.drain_one(1)
    streams = [driver.arrive([k] * 4, 300) * 128 for k in range(budget)]
    go_on(driver, 12)
    assert driver.core.instances[0].scheduler.num_running == budget
    driver.resume_one(1)
    rescued = driver.arrive([9] * 4, 300) * 128
    driver.move(rescued, 1)
    go_on(driver, 6)
    assert driver.num_outputs(rescued) > 0
    driver.lose(1)
    before, lost_s = driver.num_outputs(rescued), driver.now
    while driver.num_outputs(rescued) == before:
        go_on(driver, 1)
        assert driver.now - lost_s <= MAX_PAUSE_S + 4 * STEP_S
    assert all(one in driver.alive for one in streams)
