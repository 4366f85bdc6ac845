"""Places that streams have where they will go on, and who waits for one."""

import msgspec

from daemon.state.request import sequence_id
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What
from tests.core.driver import Driver, configured
from tests.core.test_migration import home

MIXED3 = (Role.MIXED, Role.MIXED, Role.MIXED)


def paced(roles: tuple[Role, ...], num_blocks: int = 32, **changes: object) -> Driver:
    """Instances whose policy promises a pace, and that can send to each other."""
    config = configured("gittins", len(roles), **changes)
    instances = tuple(
        msgspec.structs.replace(one, role=role)
        for one, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=instances), num_blocks)
    driver.link_all()
    return driver


def stream(driver: Driver, instance: int, number: int, num_tokens: int = 100) -> Sequence:
    """One more that has begun to answer at an instance."""
    others = [one for one in driver.core.instances if one.index != instance]
    for other in others:
        other.drained = True  # nobody else takes it
    prompt = [100 * number + place for place in range(3, 23)]
    request = driver.arrive(prompt, num_tokens)
    for other in others:
        other.drained = False
    while not driver.num_outputs(sequence_id(request, 0)):
        assert driver.answer(instance)
    return driver.core.sequences[sequence_id(request, 0)]


def crowd(driver: Driver, instance: int) -> list[Sequence]:
    """Begin streams at an instance until it can keep no more."""
    begun: list[Sequence] = []
    while not begun or keeps(driver, begun[-1], instance):
        begun.append(stream(driver, instance, 10 + len(begun)))
    return begun


def keeps(driver: Driver, sequence: Sequence, instance: int) -> bool:
    home = driver.core.instances[instance]
    return home.pace.keeps(sequence, home.scheduler.kv)


def place(driver: Driver, sequence: Sequence) -> int:
    return driver.core.migrator.pledges.target(sequence)


def test_who_is_ordered_elsewhere_while_it_moves_gives_its_place_back() -> None:
    driver = paced(MIXED3)
    crowd(driver, 2)
    one = stream(driver, 0, 1)
    driver.move(one.id, 1)
    assert place(driver, one) == 1 and one.instance == 0, "its blocks go ahead"
    driver.move(one.id, 2)
    assert place(driver, one) == -1, "nobody waits for it at 1, and 2 has no room"
    assert driver.core.instances[1].pace.num_coming == 0
    assert driver.core.instances[0].pace.num_leaving == 0


def test_an_operators_move_of_who_runs_waits_for_room() -> None:
    driver = paced(MIXED3)
    crowded = crowd(driver, 2)
    one = stream(driver, 0, 1)
    driver.move(one.id, 2)
    for _ in range(4):
        assert driver.answer(0)
        driver.land_all()
    assert one.instance == 0 and place(driver, one) == -1, "it runs on where it is"
    driver.finish(crowded[0].id)
    while one.instance == 0:
        assert driver.answer(0)
        driver.land_all()
    assert one.instance == 2
    driver.settle()
    driver.check_nothing_left()


def test_an_operators_move_of_who_waits_does_too() -> None:
    driver = paced(MIXED3)
    crowded = crowd(driver, 2)
    one = stream(driver, 0, 1)
    driver.core.touch(0).scheduler.admission.preempt(one.slot, What.GAVE_WAY, driver.now)
    driver.move(one.id, 2)
    assert one.instance == 0 and one.slot < 0
    driver.finish(crowded[0].id)
    driver.answer(0)
    assert one.instance == 2
    driver.settle()
    driver.check_nothing_left()


def test_what_waits_to_be_fetched_is_no_room_for_who_would_come() -> None:
    """Half of 0's pool has a prompt whose answer finds no slot at 1."""
    driver = paced((Role.PREFILL, Role.DECODE), max_running=1, num_blocks=30)
    runs = stream(driver, 1, 0, 40)
    zero = driver.core.instances[0]
    has_room = driver.core.migrator.pledges.has_room
    assert has_room(runs, zero), "60 of 120 tokens"
    request = driver.arrive(list(range(5, 68)), 40)
    while not zero.moving.remote_kvs:
        assert driver.answer(0) | driver.land_all()
    assert home(driver, request) == 1
    assert zero.scheduler.num_running == 0
    assert not has_room(runs, zero)
    driver.settle()
    driver.check_nothing_left()
