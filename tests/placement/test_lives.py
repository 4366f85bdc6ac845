"""Whole lives of a Core under each placement: ledgers, orders and laws after every event."""

import random
from collections.abc import Sequence as Listing

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.instance.instance import Instance
from daemon.core.migration.open_migrations import Migration
from daemon.core.placing.candidate import InstanceView
from daemon.core.values.events import PlacementChosen
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.placement import PLACEMENTS
from daemon.placement.base import Candidate, Newcomer
from daemon.state.request import sequence_id
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.wire.columns import encoder
from tests.core.driver import Driver, configured
from tests.core.laws import check_views
from tests.core.random_migrations import begin, revive, step

NAMES = sorted(PLACEMENTS)
_encode = encoder().encode


def with_checks(core: Core) -> None:
    """Have every decision of a Core check what is kept of the instances before."""
    decide = core.dispatch._decide_timed

    def checked(sequence: Sequence, among: Listing[Instance], wanted: Role, now: float) -> Instance:
        check_views(core)
        return decide(sequence, among, wanted, now)

    core.dispatch._decide_timed = checked


def live(placement: str, seed: int, num_events: int = 160) -> Driver:
    """A random life with moves, deaths, flips and predictions; everything ends well."""
    chance, guesses = random.Random(seed), random.Random(-seed)
    drawn, num_blocks = begin(chance)
    config = msgspec.structs.replace(drawn.config, placement=placement)
    driver = Driver(config, num_blocks, drawn.step_s, drawn.num_host_blocks, 1e-6)
    driver.link_all()
    with_checks(driver.core)
    for _ in range(num_events):
        step(driver, num_blocks, chance)
        if driver.requests and guesses.random() < 0.25:
            driver.predict(guesses.randrange(driver.requests), guesses.randint(1, 20))
        if guesses.random() < 0.02:
            driver.handle(PlacementChosen(driver.now, guesses.choice([placement, *NAMES])))
    revive(driver, num_blocks)
    for instance in range(len(driver.config.instances)):
        driver.resume_one(instance)
    driver.settle()
    assert not driver.alive
    driver.check_nothing_left()
    return driver


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("placement", NAMES)
def test_a_random_life_ends_well_and_is_the_same_again(placement: str, seed: int) -> None:
    driver = live(placement, seed + 10 * NAMES.index(placement))
    again = Core(driver.config)
    for event, actions in zip(driver.events, driver.actions, strict=True):
        assert _encode(again.handle(event)) == _encode(actions)


@pytest.mark.parametrize("placement", NAMES)
def test_a_full_daemon_is_served_to_the_end(placement: str) -> None:
    driver = Driver(configured(instances=4, placement=placement, max_running=2), 24)
    for number in range(40):
        request = driver.arrive([number] * (1 + 7 * number % 40), 1 + number % 17)
        driver.predict(request, 1 + number % 9)
    driver.settle()
    assert driver.core.counters.finished == 40
    driver.check_nothing_left()


def test_who_has_not_begun_is_placed_anew_when_its_length_is_told() -> None:
    driver = Driver(configured(instances=2, placement="jsq", max_running=1, max_len=256), 64)
    for answer in (120, 30):
        driver.predict(driver.arrive([1] * 9, 120), answer)
    driver.answer(0)
    driver.answer(1)
    waits = driver.arrive([3] * 9, 120)
    assert driver.core.sequences[sequence_id(waits, 0)].instance == 1
    driver.predict(waits, 60)
    longer = driver.arrive([4] * 9, 120)
    sequence = driver.core.sequences[sequence_id(longer, 0)]
    before = sequence.instance
    driver.predict(waits, 110)
    driver.predict(longer, 5)
    told = [what for _, what, _, _ in sequence.story.marks]
    assert told.count(What.QUEUED) == 2 and (What.MOVED in told) == (sequence.instance != before)
    driver.settle()
    driver.check_nothing_left()


def test_a_chosen_placement_is_used_from_then_on_and_survives_in_a_checkpoint() -> None:
    driver = Driver(configured(instances=2), 64)
    assert driver.core.dispatch.placement.name == "least_loaded"
    driver.handle(PlacementChosen(driver.now, "jsq"))
    assert driver.core.dispatch.placement.name == driver.core.config.placement == "jsq"
    state = checkpoint(driver.core, driver.now)
    other = Core(driver.config)
    restore(other, state)
    assert other.dispatch.placement.name == "jsq"
    older = Core(driver.config)
    restore(older, msgspec.structs.replace(state, placement=""))
    assert older.dispatch.placement.name == "least_loaded"


def three(handoff: str, prefix_cache: bool) -> Driver:
    """One instance for prompts, and two for answers."""
    config = configured(instances=3, prefill_chunk=8, handoff=handoff, prefix_cache=prefix_cache)
    roles = (Role.PREFILL, Role.DECODE, Role.DECODE)
    instances = tuple(
        msgspec.structs.replace(one, role=role)
        for one, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=instances), 40)
    driver.link_all()
    return driver


def migration_of(driver: Driver, sequence: int) -> Migration:
    found = driver.core.migrator.migrations.get(sequence)
    assert found is not None
    return found


@pytest.mark.parametrize("handoff", ["auto", "layered", "serialized"])
@pytest.mark.parametrize("caches", [False, True])
def test_where_an_answer_goes_on_is_chosen_at_the_last_chunk_if_nothing_went_before(
    handoff: str, caches: bool
) -> None:
    """With the prefix cache off nothing is named, so that nothing goes ahead."""
    driver = three(handoff=handoff, prefix_cache=caches)
    other = sequence_id(driver.arrive([1] * 9, 60), 0)
    while driver.core.sequences[other].instance != 1:
        driver.answer(0)
        driver.land_all()
    request = sequence_id(driver.arrive(list(range(20)), 6), 0)  # chunks of 8, 8 and 4
    driver.answer(0)
    assert migration_of(driver, request).target == 2
    assert migration_of(driver, request).sent is caches
    driver.move(other, 2)
    while driver.core.sequences[other].instance != 2:
        driver.answer(1)
        driver.land_all()
    driver.answer(0)  # and the last chunk is planned
    assert migration_of(driver, request).target == (2 if caches else 1)
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("placement", ["jsq", "aladdin"])
def test_who_runs_on_beyond_its_likely_end_is_no_gain_where_it_is(placement: str) -> None:
    driver = Driver(configured(instances=2, placement=placement, max_len=256), 24)
    driver.predict(driver.arrive([1] * 9, 80), 2)
    for _ in range(60):
        driver.answer(0)
    request = driver.arrive([2] * 9, 20)
    assert driver.core.sequences[sequence_id(request, 0)].instance == 1
    view = InstanceView(driver.core.instances[0])
    members = view.members
    assert view.load.likely_tokens + view.beyond == (members.known + members.left).sum() > 80
    driver.settle()
    driver.check_nothing_left()


def test_a_placement_that_is_no_more_gives_its_place_to_its_successor() -> None:
    driver = Driver(configured(instances=2, placement="predictive"), 64)
    assert driver.core.dispatch.placement.name == "least_loaded"
    driver.handle(PlacementChosen(driver.now, "jsq"))
    driver.handle(PlacementChosen(driver.now, "predictive"))
    assert driver.core.dispatch.placement.name == "least_loaded"
    restored = Core(driver.config)
    restore(restored, checkpoint(driver.core, driver.now))
    assert restored.dispatch.placement.name == "least_loaded"


def test_those_that_wait_for_a_worker_are_spread_over_all() -> None:
    driver = Driver(configured(instances=4, placement="jsq"), 24)
    for instance in range(4):
        driver.lose(instance)
    requests = [driver.arrive([number] * 9, 8) for number in range(8)]
    homes = [driver.core.sequences[sequence_id(one, 0)].instance for one in requests]
    assert sorted(homes) == [0, 0, 1, 1, 2, 2, 3, 3]
    for instance in range(4):
        driver.ready(instance, 24)
    driver.settle()
    driver.check_nothing_left()


@pytest.mark.parametrize("roles", [(Role.MIXED,) * 3, (Role.PREFILL, Role.DECODE, Role.DECODE)])
def test_a_length_that_nobody_predicts_is_what_answers_were(roles: tuple[Role, ...]) -> None:
    """Where answers end elsewhere than at the first instance, too, and up to what was asked for."""
    driver = Driver(configured(instances=3, placement="jsq", max_len=512), 64)
    driver.link_all()
    for instance, role in enumerate(roles):
        driver.flip(instance, role)
    for number in range(60):
        driver.arrive([number] * 9, 6)
        driver.settle()
    told: list[int] = []

    class Looks(PLACEMENTS["jsq"]):  # type: ignore[misc]
        def choose(self, newcomer: Newcomer, candidates: Listing[Candidate], seed: int) -> int:
            told.append(newcomer.likely_length - newcomer.num_tokens)
            return super().choose(newcomer, candidates, seed)

    driver.core.dispatch.placement = Looks()
    sequence = Sequence(1 << 20, 9, 400, 0, driver.now, 0)
    driver.core.dispatch.choose(sequence, driver.core.instances, Role.DECODE, driver.now)
    assert told and 6 <= told[0] <= 12
