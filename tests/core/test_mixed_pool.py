"""Splitwise's mixed pool and pairs: who does other work meanwhile, and where answers go on."""

import msgspec
import pytest

from daemon.core.values.actions import Noted
from daemon.core.values.events import Configured, FlipOrdered, Reconfigured, RolesChosen
from daemon.state.request import sequence_id
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from tests.core.driver import Driver, configured

P, D = Role.PREFILL, Role.DECODE
PROMPT = list(range(3, 25))
TENTH_S = 0.1
"""Of a token: a prompt takes longer than a queue may, and so does an answer."""


def pools(
    *roles: Role, slots: int = 8, token_s: float = TENTH_S, step_s: float = 0.001, **changes: object
) -> Driver:
    """Instances a, b, ... with these roles; those that decode have `slots`."""
    config: Configured = configured("splitwise", len(roles), prefix_cache=False, **changes)
    instances = tuple(
        msgspec.structs.replace(instance, role=role, max_running=slots if role is D else 8)
        for instance, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(
        msgspec.structs.replace(config, instances=instances), 60, step_s, token_s=token_s
    )
    driver.link_all()
    return driver


def homes(driver: Driver, requests: list[int]) -> list[int]:
    return [driver.core.sequences[sequence_id(request, 0)].instance for request in requests]


def notes(driver: Driver) -> list[str]:
    acted = [action for actions in driver.actions for action in actions]
    return [action.text for action in acted if isinstance(action, Noted)]


@pytest.mark.parametrize(("mixed_pool", "fourth"), [(True, 1), (False, 2)])
def test_prompts_go_to_the_mixed_pool_before_another_decode_instance_enters_it(
    mixed_pool: bool, fourth: int
) -> None:
    driver = pools(P, D, D, mixed_pool=mixed_pool)
    requests = [driver.arrive([number, *PROMPT], 8) for number in range(4)]
    assert homes(driver, requests) == [0, 0, 1, fourth]
    entered, *_ = driver.core.instances[1:]
    assert entered.role is D, "it keeps its identity"
    assert entered.pool is (Role.MIXED if mixed_pool else D)
    driver.settle()
    assert [instance.pool for instance in driver.core.instances] == [P, D, D]
    said = ["pools: b (decode) enters the mixed pool", "pools: b returns to the decode pool"]
    assert [note[: len(begin)] for note, begin in zip(notes(driver), said, strict=False)] == (
        said if mixed_pool else []
    )
    driver.check_nothing_left()


def test_the_mixed_pool_begins_and_ends_with_a_reload() -> None:
    driver = pools(P, D, D)
    requests = [driver.arrive([number, *PROMPT], 8) for number in range(2)]
    driver.handle(Reconfigured(driver.now, 1000, 0.3, mixed_pool=True, pair="arrival"))
    assert driver.core.config.pair == "arrival"
    requests += [driver.arrive([number, *PROMPT], 8) for number in range(2, 4)]
    assert homes(driver, requests) == [0, 0, 1, 1], "the second of the mixed pool's"
    assert driver.core.instances[1].pool is Role.MIXED
    driver.handle(Reconfigured(driver.now, 1000, 0.3))
    assert driver.core.config.mixed_pool, "an older journal's event says nothing of it"
    driver.handle(Reconfigured(driver.now, 1000, 0.3, mixed_pool=False, pair="last_chunk"))
    assert [instance.pool for instance in driver.core.instances] == [P, D, D]
    assert notes(driver)[-1].startswith("pools: b returns to the decode pool")
    driver.settle()
    assert not driver.core.config.mixed_pool and driver.core.config.pair == "last_chunk"
    driver.check_nothing_left()


def crowded(**changes: object) -> tuple[Driver, list[int]]:
    """Three prompts whose answers find one slot where answers are decoded."""
    driver = pools(P, P, D, slots=1, token_s=0.0, step_s=TENTH_S, mixed_pool=True, **changes)
    requests = []
    for number in range(4):
        requests.append(driver.arrive([number, *PROMPT], 40))
        for _ in range(6):
            driver.answer(0)
            driver.answer(1)
            driver.land_all()
            driver.answer(2)
    return driver, requests


@pytest.mark.parametrize("handoff", ["auto", "serialized", "layered"])
def test_an_answer_stays_where_its_prompt_was_if_the_decode_pool_is_full(handoff: str) -> None:
    driver, requests = crowded(handoff=handoff)
    found = homes(driver, requests)
    assert found.count(2) >= 1 and set(found) > {2}
    staying = [instance for instance in driver.core.instances if instance.pool is Role.MIXED]
    assert staying and all(instance.role is P for instance in staying)
    driver.settle()
    assert {instance.pool for instance in driver.core.instances} == {P, D}
    assert not driver.core.counters.flips
    driver.check_nothing_left()


@pytest.mark.parametrize("chosen_by", ["configuration", "operator", "forecast"])
def test_one_that_stays_long_in_the_mixed_pool_gets_the_other_role(chosen_by: str) -> None:
    driver, _ = crowded()
    index, *_ = (home.index for home in driver.core.instances if home.pool is Role.MIXED)
    if chosen_by == "operator":
        driver.handle(FlipOrdered(driver.now, index, D))
        driver.handle(FlipOrdered(driver.now, index, P))
    elif chosen_by == "forecast":
        driver.handle(RolesChosen(driver.now, "auto"))
    changes = chosen_by == "configuration"
    num_flips = driver.core.counters.flips
    driver.now += 61.0
    driver.answer(index)
    roles = [instance.role for instance in driver.core.instances]
    assert driver.core.counters.flips == num_flips + changes
    assert roles.count(P) == 2 - changes
    driver.settle()
    driver.check_nothing_left()


def test_the_last_prefill_instance_keeps_its_role() -> None:
    driver = pools(P, D, slots=1, token_s=0.0, step_s=TENTH_S, mixed_pool=True)
    for number in range(4):
        driver.arrive([number, *PROMPT], 40)
    for _ in range(20):
        driver.answer(0)
        driver.land_all()
        driver.answer(1)
    assert driver.core.instances[0].pool is Role.MIXED
    driver.now += 61.0
    driver.answer(0)
    assert driver.core.instances[0].role is P
    driver.settle()


def test_a_pair_is_assigned_at_arrival_and_counts_where_its_answer_will_be() -> None:
    driver = pools(P, D, D, token_s=0.0, pair="arrival", placement="jsq")
    driver.arrive(list(range(32)), 1)  # it has the first step alone
    requests = [driver.arrive([number, *PROMPT], 8) for number in range(4)]
    coming = driver.core.migrator.pairs
    chosen = {member.request: index for index in (1, 2) for member in coming.coming(index)}
    # Pending tokens where they go: 32 of the first at b, 31 and 62 at c, then 63 at b.
    assert chosen == dict(zip(requests, (2, 2, 1, 2), strict=True))
    went: dict[int, int] = {}
    while len(went) < len(requests):
        driver.answer(0)
        driver.land_all()
        for request in requests:
            sequence = driver.core.sequences.get(sequence_id(request, 0))
            if sequence is not None and sequence.instance > 0:
                went.setdefault(request, sequence.instance)
    assert went == chosen
    assert not any(index in coming for index in range(3))
    driver.settle()
    driver.check_nothing_left()


def test_a_pair_whose_instance_is_drained_is_chosen_anew() -> None:
    driver = pools(P, D, D, token_s=0.0, pair="arrival")
    driver.arrive(list(range(32)), 1)
    request = driver.arrive(PROMPT, 8)
    pairs = driver.core.migrator.pairs
    (target,) = (i for i in (1, 2) if request in [member.request for member in pairs.coming(i)])
    driver.drain_one(target)
    driver.settle()
    assert driver.core.counters.handoffs == 1 and sequence_id(request, 0) in driver.ended
    assert not driver.core.instances[target].scheduler.step
    driver.check_nothing_left()


def test_what_leaves_one_that_gets_the_other_role_is_computed_at_once_where_nothing_runs() -> None:
    """No other event may ever come to where it goes."""
    driver, _ = crowded()
    index, *_ = (home.index for home in driver.core.instances if home.pool is Role.MIXED)
    other = 1 - index
    for _ in range(200):
        driver.answer(other)
        driver.land_all()
    assert not driver.workers[other].pending and driver.core.instances[index].pool is Role.MIXED
    driver.drain_one(other)
    _, waiting = (driver.arrive([number, *PROMPT], 8) for number in (8, 9))
    driver.move(sequence_id(waiting, 0), index)  # an operator wants it there
    driver.resume_one(other)
    assert homes(driver, [waiting]) == [index]
    driver.now += 61.0
    driver.answer(index)
    assert homes(driver, [waiting]) == [other] and driver.workers[other].pending
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("role", [D, Role.MIXED])
def test_a_pair_counts_no_more_where_its_answer_will_not_be(role: Role) -> None:
    """Its prompt waits where answers are decoded too, since that instance has another role."""
    driver = pools(P, P, D, token_s=0.0, pair="arrival")
    driver.drain_one(1)
    driver.arrive(list(range(32)), 1)
    request = driver.arrive(PROMPT, 8)
    driver.move(sequence_id(request, 0), 0)  # an operator wants it there
    assert homes(driver, [request]) == [0] and request in seen_coming(driver, 2)
    driver.resume_one(1)
    driver.flip(0, role)
    assert homes(driver, [request]) == [0 if role is Role.MIXED else 1]
    assert (request in seen_coming(driver, 2)) == (role is D), "from the other prefill instance"
    driver.settle()
    driver.check_nothing_left()


def seen_coming(driver: Driver, index: int) -> set[int]:
    """The requests that placement counts at an instance, and that are elsewhere."""
    core = driver.core
    (view,) = core.dispatch._views_of([core.instances[index]], Sequence(-1, 1, 1, 0, 0.0, 0))
    return {sequence.request for sequence in view._coming}
