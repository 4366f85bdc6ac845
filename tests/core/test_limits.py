"""Limits of single instances: what each says, what it leaves open, and what then happens there."""

import msgspec
import pytest

from daemon.core.core import Core
from daemon.core.values.actions import Submit
from daemon.core.values.events import Configured, InstanceConfig, PolicyChosen, Reconfigured
from daemon.core.values.limits import InstanceLimits, limits_of
from daemon.state.role import Role
from tests.core.driver import Driver, configured

SHARED = InstanceLimits("sarathi", 8, 0, 0, 1, "", "greedy")
OPEN = InstanceLimits("", 0, 0, 0, 0, "")


def with_instances(*own: dict[str, object], **changes: object) -> Configured:
    """A configuration with an instance for each of these limits."""
    config = configured(**changes)  # type: ignore[arg-type]
    instances = tuple(
        InstanceConfig(chr(97 + index), Role.MIXED, "cpu", **one)  # type: ignore[arg-type]
        for index, one in enumerate(own)
    )
    return msgspec.structs.replace(config, instances=instances)


@pytest.mark.parametrize(
    ("own", "resolved"),
    [
        ({}, ("sarathi", 8, 512, 512, 1, "", "greedy")),
        ({"policy": "vllm"}, ("vllm", 8, 2560, 2560, 1, "", "greedy")),
        ({"max_batch_tokens": 64}, ("sarathi", 8, 64, 64, 1, "", "greedy")),
        ({"prefill_chunk": 32, "swap": "defer"}, ("sarathi", 8, 512, 32, 1, "defer", "greedy")),
        ({"max_running": 2, "depth": 3}, ("sarathi", 2, 512, 512, 3, "", "greedy")),
        (
            {"decode_admission": "reserve_static"},
            ("sarathi", 8, 512, 512, 1, "", "reserve_static"),
        ),
    ],
)
def test_an_instance_has_its_own_limits_and_else_those_of_all(
    own: dict[str, object], resolved: tuple[object, ...]
) -> None:
    said = InstanceLimits(**{**vars_of(OPEN), **own})
    assert tuple(vars_of(limits_of(said, SHARED)).values()) == resolved


def vars_of(limits: InstanceLimits) -> dict[str, object]:
    return {name: getattr(limits, name) for name in InstanceLimits.__slots__}


def test_a_smaller_budget_cuts_the_chunk_that_is_said_for_all() -> None:
    said = InstanceLimits("", 0, 16, 0, 0, "")
    assert limits_of(said, InstanceLimits("sarathi", 8, 64, 32, 0, "")).prefill_chunk == 16


def test_each_instance_keeps_to_its_own() -> None:
    """The second one has two slots and steps of six tokens; requests go to both."""
    driver = Driver(with_instances({}, {"max_running": 2, "max_batch_tokens": 6}), 64)
    for number in range(12):
        driver.arrive([number] * 9, 6)
    driver.settle()
    most_tokens, most_running = [0, 0], [0, 0]
    for action in (action for actions in driver.actions for action in actions):
        if isinstance(action, Submit):
            instance, tokens = action.batch.instance, int(action.batch.counts.sum())
            most_tokens[instance] = max(most_tokens[instance], tokens)
            most_running[instance] = max(most_running[instance], action.batch.slots.size)
    assert most_running[1] == 2 < most_running[0]
    assert most_tokens[1] == 6 < most_tokens[0]
    driver.check_nothing_left()


def test_a_policy_is_chosen_for_one_instance_or_for_all() -> None:
    core = Core(with_instances({}, {"policy": "vllm"}, {"policy": "mlfq", "swap": "defer"}))

    def now() -> list[tuple[str, str]]:
        statuses = [one.status() for one in core.instances]
        return [(one.policy, one.swap) for one in statuses]

    assert [policy for policy, _ in now()] == ["sarathi", "vllm", "mlfq"]
    assert now()[2][1] == "defer"
    core.handle(PolicyChosen(0.0, "srtf", 1))
    assert [policy for policy, _ in now()] == ["sarathi", "srtf", "mlfq"]
    core.handle(PolicyChosen(0.0, "orca"))
    assert [policy for policy, _ in now()] == ["orca", "orca", "orca"]
    assert now()[2][1] == "defer", "the instance's own swap mode goes before the policy's"


def test_other_limits_of_the_core_leave_those_of_its_instances() -> None:
    core = Core(with_instances({"max_running": 2}, {}))
    before = [one.limits for one in core.instances]
    core.handle(Reconfigured(0.0, 3, 0.01))
    assert [one.limits for one in core.instances] == before
    assert [one.scheduler.order.starve_s for one in core.instances] == [0.01, 0.01]


def test_what_was_recorded_before_instances_had_limits_still_reads() -> None:
    recorded = msgspec.msgpack.encode(["a", "mixed", "cpu", 1, True])
    config = msgspec.msgpack.decode(recorded, type=InstanceConfig)
    assert config == InstanceConfig("a", Role.MIXED, "cpu", ahead=True)
    chosen = msgspec.msgpack.encode(["PolicyChosen", 1.0, "srtf"])
    assert msgspec.msgpack.decode(chosen, type=PolicyChosen) == PolicyChosen(1.0, "srtf")
