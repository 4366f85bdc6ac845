"""The rules of the transition watcher: which instance changes, and when none does."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.events import FlipOrdered, RolesChosen
from daemon.core.view.checkpoint import checkpoint, restore
from daemon.core.view.view import snapshot
from daemon.roles.transition import BusyWindow, InstanceLoad, transition
from daemon.state.role import IDLE, LOW_LOAD, Role
from tests.core.driver import Driver, configured

P, D = Role.PREFILL, Role.DECODE


def load(role: Role, share: float, seen_s: float = 60.0, is_free: bool = True) -> InstanceLoad:
    return InstanceLoad("x", role, share, seen_s, is_free)


@pytest.mark.parametrize(
    ("loads", "low", "idle"),
    [
        ([load(P, 0.5), load(P, 0.0), load(D, 0.6)], 1, 1),
        ([load(P, 0.5), load(P, 0.09), load(D, 0.6)], 1, None),
        ([load(D, 0.3), load(D, 0.1), load(P, 0.6)], None, None),
        ([load(D, 0.02), load(D, 0.01), load(P, 0.6)], 1, None),  # the least loaded
        ([load(P, 0.0), load(D, 0.6)], None, None),  # the last of its role
        ([load(P, 0.0), load(P, 0.0), load(D, 0.05)], None, 0),  # the others have little to do
        ([load(P, 0.0), load(P, 0.0), load(D, 0.0)], None, None),
        ([load(P, 0.5), load(P, 0.0, seen_s=59.0), load(D, 0.6)], None, None),
        ([load(P, 0.5), load(P, 0.0, is_free=False), load(D, 0.6)], None, None),
        ([load(Role.MIXED, 0.0), load(Role.MIXED, 0.0), load(D, 0.6)], None, None),
    ],
)
def test_one_of_little_load_changes_where_the_others_have_more(
    loads: list[InstanceLoad], low: int | None, idle: int | None
) -> None:
    for rule, place in ((LOW_LOAD, low), (IDLE, idle)):
        found = transition(rule, loads)
        assert (found.place if found else None) == place
        if found is not None:
            assert found.role is not loads[found.place].role


def test_a_minute_is_remembered_and_no_more() -> None:
    window = BusyWindow(2)
    window.begin(100.0)
    window.worked(0, 3.0)
    for bucket in range(1, 12):
        window.close(100.0 + 5.0 * bucket)
    assert (window.share(0), window.share(1)) == (0.05, 0.0)
    assert BusyWindow.restored(window.state()).share(0) == 0.05
    window.close(160.0)
    assert window.share(0) == 0.0
    window.close(165.0)
    assert window.edge_s < 0.0, "it rests"


def watched(rule: str, roles: tuple[Role, ...]) -> Driver:
    config = configured(instances=len(roles), roles=rule, placement="least_loaded")
    given = tuple(
        msgspec.structs.replace(instance, role=role, chunk_is_own=True)
        for instance, role in zip(config.instances, roles, strict=True)
    )
    driver = Driver(msgspec.structs.replace(config, instances=given), 40, step_s=0.1)
    driver.link_all()
    return driver


def served(driver: Driver, seconds: float) -> None:
    """Requests one after the other, so that one instance of each role suffices."""
    until_s = driver.now + seconds
    while driver.now < until_s:
        driver.arrive([1 + driver.requests % 7] * 9, max_tokens=4)
        driver.settle()
        driver.now += 0.5


@pytest.mark.parametrize("rule", [LOW_LOAD, IDLE])
def test_an_idle_decode_instance_computes_prompts_after_a_minute(rule: str) -> None:
    driver = watched(rule, (P, D, D))
    served(driver, 50.0)
    assert driver.core.counters.flips == 0, "not yet a minute"
    served(driver, 40.0)
    roles = [instance.role for instance in driver.core.instances]
    assert driver.core.counters.flips == 1 and roles.count(P) == 2
    status = snapshot(driver.core, driver.now).roles
    assert status.mode == rule and status.pinned == () and "becomes prefill" in status.decision
    assert "chunks" not in status.decision, "no SLO chooses them under a rule"
    served(driver, 70.0)
    assert driver.core.counters.flips == 2, "it found nothing to do there either"
    driver.check_nothing_left()


def test_an_operator_s_role_stays_and_a_rule_goes_on_from_it() -> None:
    driver = watched(IDLE, (P, D, D))
    for index in (1, 2):
        driver.handle(FlipOrdered(driver.now, index, D))
    served(driver, 90.0)
    assert driver.core.counters.flips == 0
    driver.handle(RolesChosen(driver.now, IDLE))
    served(driver, 90.0)
    assert driver.core.counters.flips == 1
    driver.handle(RolesChosen(driver.now, "mixed"))
    assert [instance.role for instance in driver.core.instances] == [P, D, D]


def test_a_checkpoint_keeps_what_was_seen() -> None:
    driver = watched(IDLE, (P, D, D))
    served(driver, 40.0)
    later = Core(driver.config)
    restore(later, checkpoint(driver.core, driver.now))
    assert later.watcher.state() == driver.core.watcher.state()
