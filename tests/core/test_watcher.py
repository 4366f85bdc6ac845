"""The watcher of roles in a Core: who is pinned, what is told, and nothing where it is off."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.roles.choices import are_alike, assigned, mixed, present, splits
from daemon.core.values.events import Configured, FlipOrdered, RolesChosen
from daemon.core.view.checkpoint import Checkpoint, checkpoint, restore
from daemon.core.view.view import snapshot
from daemon.cost.work import StepWork
from daemon.roles.decide import Decided
from daemon.roles.forecast import Split
from daemon.state.role import AUTO, Role
from daemon.wire.columns import decoder, encoder
from tests.core.driver import Driver, configured


def watched(instances: int = 3, roles: tuple[Role, ...] = (), **changes: object) -> Driver:
    config = configured(instances=instances, roles=AUTO, **changes)
    given = tuple(
        msgspec.structs.replace(one, role=role)
        for one, role in zip(config.instances, roles or [Role.MIXED] * instances, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=given), num_blocks=40)
    driver.link_all()
    return driver


def served(driver: Driver, seconds: float, every_s: float = 0.5) -> None:
    """Requests one after the other, each answered before the next."""
    until_s = driver.now + seconds
    while driver.now < until_s:
        driver.arrive([1 + driver.requests % 7] * 9, max_tokens=4)
        driver.settle()
        driver.now += every_s


def test_a_configured_role_and_a_flip_are_pinned_until_the_watcher_may_choose_all() -> None:
    driver = watched(3, (Role.PREFILL, Role.MIXED, Role.MIXED))
    told = snapshot(driver.core, driver.now).roles
    assert told.mode == "auto" and told.pinned == ("a",)
    driver.handle(FlipOrdered(driver.now, 2, Role.DECODE))
    assert snapshot(driver.core, driver.now).roles.pinned == ("a", "c")
    driver.handle(FlipOrdered(driver.now, 1, Role.MIXED))
    assert snapshot(driver.core, driver.now).roles.pinned == ("a", "b", "c")
    assert driver.core.counters.flips == 1, "the same role again is no flip"
    driver.handle(RolesChosen(driver.now, AUTO))
    told = snapshot(driver.core, driver.now).roles
    assert told.pinned == () and told.present == "undecided", "no choice has all three roles"
    assert [one.role for one in driver.core.instances] == [Role.PREFILL, Role.MIXED, Role.DECODE]


def test_mixed_gives_back_the_configured_roles() -> None:
    driver = watched(2, (Role.PREFILL, Role.MIXED))
    driver.handle(FlipOrdered(driver.now, 1, Role.DECODE))
    driver.handle(RolesChosen(driver.now, "mixed"))
    assert [one.role for one in driver.core.instances] == [Role.PREFILL, Role.MIXED]
    assert not driver.core.watcher.on
    assert snapshot(driver.core, driver.now).roles.mode == "mixed"


def test_what_arrives_is_looked_at_and_a_light_load_stays_mixed() -> None:
    driver = watched()
    served(driver, 70.0)
    told = snapshot(driver.core, driver.now).roles
    assert driver.core.counters.flips == 0
    assert [one.choice for one in told.expected] == ["mixed", "1:2", "2:1"]
    assert told.expected[0].attainment > 0.9
    assert "decided" in told.decision and told.num_measured > 100 and told.measured == 1.0


def test_cards_of_different_models_are_not_alike() -> None:
    """Their devices are `cuda:0` and `cuda:1`; one computes a step in half the time."""
    for slower, alike in ((1.2, True), (2.0, False)):
        homes = watched(2).core.instances
        assert are_alike(homes)
        for home, times in zip(homes, (1.0, slower), strict=True):
            for rows in range(1, 65):
                chunks = ((rows, 0),) if rows % 3 else ()
                work = StepWork(rows, 100 * rows, chunks, rows)
                step_s = times * (0.02 + 1e-4 * rows + 1e-4 * work.prompts()[0])
                home.step_time.observe(work, step_s)
        assert are_alike(homes) is alike


def bending(instances: int = 2, roles: tuple[Role, ...] = ()) -> Driver:
    """Instances whose chunks nobody wrote; a prompt's token takes a tenth of a step."""
    config = configured(
        instances=instances, roles=AUTO, slo_ttft_s=60.0, slo_tpot_s=0.0015, prefill_chunk=32
    )
    given = tuple(
        msgspec.structs.replace(one, role=role, chunk_is_own=True)
        for one, role in zip(config.instances, roles or [Role.MIXED] * instances, strict=True)
    )
    given_config = msgspec.structs.replace(config, instances=given)
    driver = Driver(given_config, num_blocks=40, step_s=0.001, token_s=0.0001)
    driver.link_all()
    return driver


def chunks_beside_a_stream(driver: Driver) -> int:
    """Tokens of a long prompt's first chunk, where a stream draws on the same instance."""
    for instance in range(1, len(driver.core.instances)):
        driver.drain_one(instance)
    driver.arrive([1] * 4, max_tokens=60)
    driver.answer(0)
    driver.answer(0)
    driver.arrive([2] * 60, max_tokens=4)
    driver.answer(0)
    ((count, _),) = driver.core.instances[0].newest_work.chunks
    return count


def test_a_step_has_as_many_prompt_tokens_as_its_streams_were_promised() -> None:
    assert 8 <= chunks_beside_a_stream(bending()) < 16, "a quarter, at least"
    written = bending()
    given = tuple(
        msgspec.structs.replace(one, chunk_is_own=False) for one in written.config.instances
    )
    config = msgspec.structs.replace(written.config, instances=given)
    assert chunks_beside_a_stream(Driver(config, 40, 0.001, token_s=0.0001)) == 31


def test_chunks_are_as_configured_where_roles_are() -> None:
    driver = bending()
    told = snapshot(driver.core, driver.now).roles
    assert told.decision == "nothing was seen yet; chunks of 8 to 32"
    driver.handle(RolesChosen(driver.now, "mixed"))
    assert snapshot(driver.core, driver.now).roles.decision == ""
    assert chunks_beside_a_stream(driver) == 31


def test_who_computes_prompts_for_others_bends_for_nobody() -> None:
    driver = bending(2, (Role.PREFILL, Role.DECODE))
    promised = [driver.core.watcher.slo(one) for one in driver.core.instances]
    assert promised[0] is None and promised[1] is not None


def test_a_load_that_is_decided_is_forecast_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = watched()
    served(driver, 70.0)
    expected = snapshot(driver.core, driver.now).roles.expected
    assert driver.core.watcher._decider.state.is_settled
    monkeypatch.setattr("daemon.core.roles.watcher.mean_forecast", None)
    served(driver, 30.0)
    told = snapshot(driver.core, driver.now).roles
    assert told.expected == expected and "decided" in told.decision
    assert told.age_s > 25.0, "it says the same since then"


def test_a_flip_says_why() -> None:
    driver = watched(2, (Role.MIXED, Role.MIXED))
    decided = Decided("1:1", "better than mixed by 0.25")
    driver.core.watcher._change(decided, driver.core.instances, driver.now)
    whys = {one.why for one in driver.core.migrator.flips.newest}
    assert whys == {"auto: 1:1: better than mixed by 0.25"}


def test_without_links_there_is_nothing_to_choose() -> None:
    driver = watched()
    for source, target in list(driver.links):
        driver.break_link(source, target, source, driver.links.pop((source, target)))
    served(driver, 30.0)
    told = snapshot(driver.core, driver.now).roles
    assert told.decision == "not all instances are linked" and not told.expected


def test_refused_and_failed_requests_keep_no_promise() -> None:
    driver = watched(2, max_waiting=0)
    driver.now = 1.0
    driver.arrive([1] * 9, max_tokens=4)
    assert snapshot(driver.core, driver.now).roles.num_measured == 1
    assert snapshot(driver.core, driver.now).roles.measured == 0.0


def test_it_is_off_in_old_journals_and_with_one_instance() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(Configured)}
    assert fields["roles"].default == ""
    assert not Driver(configured(instances=2), num_blocks=40).core.watcher.on
    assert not watched(1).core.watcher.on
    idle = Driver(configured(instances=2), num_blocks=40)
    assert checkpoint(idle.core, idle.now).watcher is None


def test_a_core_from_a_checkpoint_does_the_same_again() -> None:
    driver = watched(3)
    served(driver, 25.0)
    written = encoder().encode(checkpoint(driver.core, driver.now))
    again = Core(driver.config)
    restore(again, decoder(Checkpoint).decode(written))
    assert encoder().encode(checkpoint(again, driver.now)) == written
    first = len(driver.events)
    served(driver, 20.0)
    driver.handle(FlipOrdered(driver.now, 0, Role.DECODE))
    served(driver, 30.0, 0.2)
    for event, actions in zip(driver.events[first:], driver.actions[first:], strict=True):
        assert encoder().encode(again.handle(event)) == encoder().encode(actions)
    told = [snapshot(core, driver.now).roles for core in (driver.core, again)]
    assert told[0] == told[1]


def test_choices_count_pinned_instances() -> None:
    driver = watched(4, (Role.PREFILL, Role.MIXED, Role.MIXED, Role.DECODE))
    homes, pinned = driver.core.instances, driver.core.watcher.pinned
    assert pinned == {0, 3}
    assert splits(homes, pinned) == [Split(1, 3), Split(2, 2), Split(3, 1)]
    assert mixed(homes, pinned) == Split(1, 1), "what placement makes of it"
    assert present(homes[1:3], homes) == "mixed"
    driver.core.watcher.pinned.clear()
    assert splits(homes, set()) == [Split(1, 3), Split(2, 2), Split(3, 1)]


@pytest.mark.parametrize(
    ("choice", "changed"),
    [
        ("1:3", {1: Role.DECODE, 2: Role.DECODE, 3: Role.DECODE, 0: Role.PREFILL}),
        ("3:1", {3: Role.DECODE, 0: Role.PREFILL, 1: Role.PREFILL, 2: Role.PREFILL}),
        ("mixed", {}),
    ],
)
def test_who_becomes_what_with_new_decode_instances_first(
    choice: str, changed: dict[int, Role]
) -> None:
    homes = watched(4).core.instances
    assert [(one.index, role) for one, role in assigned(choice, homes, homes)] == [*changed.items()]


def test_a_split_changes_as_few_as_it_can() -> None:
    driver = watched(4)
    homes = driver.core.instances
    for index, role in enumerate((Role.DECODE, Role.PREFILL, Role.DECODE, Role.DECODE)):
        homes[index].role = role
    assert [(one.index, role) for one, role in assigned("2:2", homes, homes)] == [(0, Role.PREFILL)]
    assert len(assigned("mixed", homes, homes)) == 4


def test_instances_that_can_be_nothing_else_become_mixed_after_a_while() -> None:
    """Roles that were left behind, and no links: no split is to be had, so they are no use."""
    driver = watched(3)
    for index, role in enumerate((Role.PREFILL, Role.DECODE, Role.DECODE)):
        driver.handle(FlipOrdered(driver.now, index, role))
    driver.handle(RolesChosen(driver.now, AUTO))
    for source, target in list(driver.links):
        driver.break_link(source, target, source, driver.links.pop((source, target)))
    served(driver, 60.0)
    assert driver.core.instances[0].role is Role.PREFILL, "links come back, most times"
    served(driver, 60.0)
    assert {one.role for one in driver.core.instances} == {Role.MIXED}
    assert snapshot(driver.core, driver.now).roles.present == "mixed"
    flips = driver.core.counters.flips
    driver.link_all()
    served(driver, 90.0)
    assert driver.core.counters.flips == flips, "it does not go to and fro with the links"


def test_one_that_is_alone_with_pinned_ones_does_both() -> None:
    driver = watched(2)
    driver.handle(FlipOrdered(driver.now, 0, Role.PREFILL))
    driver.handle(RolesChosen(driver.now, AUTO))
    driver.handle(FlipOrdered(driver.now, 1, Role.MIXED))
    served(driver, 120.0)
    assert [one.role for one in driver.core.instances] == [Role.MIXED, Role.MIXED]


def test_roles_that_are_all_pinned_are_the_choice_in_force() -> None:
    told = snapshot(watched(3, (Role.PREFILL, Role.DECODE, Role.DECODE)).core, 0.0).roles
    assert told.present == "1:2"
    homes = watched(3, (Role.PREFILL, Role.MIXED, Role.DECODE)).core.instances
    assert present([], homes) == "" and present([], homes[1:2]) == "mixed"


@pytest.mark.parametrize("n", [1, 4])
def test_what_further_answers_share_with_the_first_is_computed_once(n: int) -> None:
    driver = watched(2)
    for number in range(60):
        driver.arrive([10 + number] * 24, max_tokens=4, n=n)
        driver.settle()
        driver.now += 0.5
    load = driver.core.watcher._load()
    assert load is not None and load.answers_per_request == n
    assert load.cached_share < 0.1, "each prompt is new"
    for _ in range(60):
        driver.arrive([9] * 24, max_tokens=4, n=n)
        driver.settle()
        driver.now += 0.5
    load = driver.core.watcher._load()
    assert load is not None and 0.2 < load.cached_share < 0.5, "half of them have been seen"


def test_what_can_never_be_served_is_no_load() -> None:
    driver = watched(2)
    driver.arrive([1] * 9, max_tokens=4)
    driver.settle()
    told = snapshot(driver.core, driver.now).roles
    for _ in range(9):
        driver.arrive([1] * 120, max_tokens=100)
    driver.drain()
    driver.arrive([1] * 9, max_tokens=4)
    after = snapshot(driver.core, driver.now).roles
    assert (after.num_measured, after.measured) == (told.num_measured, told.measured) == (1, 1.0)
    driver.now += 10.0
    driver.tick()
    assert driver.core.watcher._window.num_requests == 1


def test_clients_that_leave_count_where_a_promise_was_broken_by_then() -> None:
    driver = watched(2, slo_ttft_s=1.0, slo_tpot_s=10.0)
    served(driver, 10.0)
    before = snapshot(driver.core, driver.now).roles
    assert before.measured == 1.0
    early, late = (driver.arrive([200 + k] * 9, max_tokens=4) for k in range(2))
    driver.now += 0.5
    driver.abort(early)
    at_once = snapshot(driver.core, driver.now).roles
    assert (at_once.measured, at_once.num_measured) == (1.0, before.num_measured)
    driver.now += 1.0
    driver.abort(late)
    after = snapshot(driver.core, driver.now).roles
    assert after.num_measured == before.num_measured + 1 and after.measured < 1.0
    driver.settle()
