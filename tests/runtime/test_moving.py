"""Orders between instances: each reaches the Core as an event, or is refused with a sentence."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from daemon.config.load import load
from daemon.control.server import RefusalError
from daemon.core.actions import Action
from daemon.core.events import (
    Event,
    InstanceDrained,
    InstanceResumed,
    MoveOrdered,
    RoleChosen,
)
from daemon.core.snapshot import CoreSnapshot, FlipStatus, TransferStatus
from daemon.protocol.control import Flipped, Migrating
from daemon.protocol.worker import Ready
from daemon.role import Role
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.operations import Operations
from daemon.runtime.serving import ServingStatus
from daemon.runtime.status import DaemonStatus
from tests.runtime.ends import SERVED, House, generate, parts_of, until

Build = Callable[..., House]
ORDERS = (RoleChosen, MoveOrdered, InstanceDrained, InstanceResumed)


class Ordered(ServingStatus):
    """A status whose roles, drained instances and flips are made by hand; orders are noted."""

    def __init__(self, house: House) -> None:
        parts = parts_of(load(), house.link)
        super().__init__(parts, "", SERVED, house.runtime, GpuWatch(()))
        self.events: list[Event] = []
        self.flips: tuple[FlipStatus, ...] = ()
        self.drained: set[int] = set()
        self.operations = Operations(parts, load, lambda: self)
        self._handle = house.runtime.core.handle
        house.runtime.core.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: Event) -> list[Action]:
        """Note an order, and hand everything else to the Core."""
        if not isinstance(event, ORDERS):
            return self._handle(event)
        self.events.append(event)
        if isinstance(event, RoleChosen):
            name, number = "ab"[event.instance], len(self.flips) + 1
            flip = FlipStatus(number, name, Role.MIXED, event.role, event.why, 0, -1, -1, False)
            self.flips += (flip,)
        return []

    def _core(self, now: float) -> CoreSnapshot:
        core = super()._core(now)
        instances = tuple(
            msgspec.structs.replace(one, drained=index in self.drained)
            for index, one in enumerate(core.instances)
        )
        return msgspec.structs.replace(core, instances=instances, flips=self.flips)

    def went_on(self, **changes: object) -> None:
        """The newest flip is further."""
        self.flips = (*self.flips[:-1], msgspec.structs.replace(self.flips[-1], **changes))


@pytest.fixture
async def ordered(house_of: Build) -> Ordered:
    """Two instances that are ready, a with 256 tokens and b with 16; sequence 128 runs on a."""
    house = house_of(instances=2)
    house.ready()
    house.paused = True
    house.api.send(generate(1, [1, 2, 3], 60))
    await until(lambda: bool(house.plans))
    house.runtime.worker_ready(1, Ready(4, 1, 1, 0.1, 0.001))
    return Ordered(house)


def sequence_of(status: Ordered) -> int:
    (sequence,) = status._runtime.core.sequences
    return sequence


async def test_a_flip_is_answered_when_its_first_work_was_sent(ordered: Ordered) -> None:
    order = asyncio.create_task(ordered.operations.flip("b", "decode", 60.0))
    await asyncio.sleep(0.05)
    assert not order.done()
    (event,) = ordered.events
    assert isinstance(event, RoleChosen)
    assert (event.instance, event.role, event.why) == (1, Role.DECODE, "operator")
    ordered.went_on(flip_s=0.02)
    async with asyncio.timeout(5):
        assert await order == Flipped(1, "b", Role.MIXED, Role.DECODE, 0.02, -1.0, False)


async def test_a_flip_that_no_work_waits_for_is_answered_at_once(ordered: Ordered) -> None:
    order = asyncio.create_task(ordered.operations.flip("a", "prefill", 60.0))
    await asyncio.sleep(0)
    ordered.went_on(idle=True, clear_s=0.5)
    async with asyncio.timeout(5):
        assert await order == Flipped(1, "a", Role.MIXED, Role.PREFILL, -1.0, 0.5, True)


async def test_a_flip_to_the_role_it_has_changes_nothing(ordered: Ordered) -> None:
    same = await ordered.operations.flip("a", "mixed", 60.0)
    assert same == Flipped(0, "a", Role.MIXED, Role.MIXED, 0.0, 0.0, False)
    assert not ordered.events


@pytest.mark.parametrize("wait_s", [0.0, 0.1])
async def test_a_flip_without_work_is_waited_for_no_longer_than_is_asked(
    ordered: Ordered, wait_s: float
) -> None:
    async with asyncio.timeout(5):
        late = await ordered.operations.flip("b", "prefill", wait_s)
    assert (late.flip_s, late.idle) == (-1.0, False)


async def test_a_sequence_is_ordered_elsewhere(ordered: Ordered) -> None:
    ordered._runtime.worker_ready(1, Ready(64, 1, 1, 0.1, 0.001))
    sequence = sequence_of(ordered)
    assert ordered.operations.migrate(sequence, "b") == Migrating(sequence, "a", "b")
    (event,) = ordered.events
    assert isinstance(event, MoveOrdered)
    assert (event.sequence, event.instance) == (sequence, 1)


async def test_what_cannot_move_is_refused_with_a_sentence(ordered: Ordered) -> None:
    migrate, sequence = ordered.operations.migrate, sequence_of(ordered)
    for number, name, words in (
        (sequence, "A", "unknown instance 'A'"),
        (7, "b", r"there is no sequence 7 \(any more\)"),
        (sequence, "a", f"sequence {sequence} is on a already"),
        (sequence, "b", f"b cannot hold sequence {sequence}: it may grow to 63 tokens, and there "
                        "is room for 16"),
    ):  # fmt: skip
        with pytest.raises(RefusalError, match=words):
            migrate(number, name)
    ordered.drained.add(1)
    with pytest.raises(RefusalError, match="b is drained: llmd ctl resume b comes first"):
        migrate(sequence, "b")
    ordered._runtime.worker_lost(1, blamed=False)
    with pytest.raises(RefusalError, match="the worker of b is not ready: lost"):
        migrate(sequence, "b")
    assert not ordered.events


async def test_a_stream_that_waits_for_anothers_prompt_has_no_place_to_leave(
    house_of: Build,
) -> None:
    house = house_of(instances=2)
    house.ready()
    house.paused = True
    house.api.send(generate(1, [1, 2, 3], 8, n=2))
    await until(lambda: bool(house.plans))
    ordered = Ordered(house)
    held_back = max(house.runtime.core.sequences)
    with pytest.raises(RefusalError, match=f"sequence {held_back} is on no instance yet"):
        ordered.operations.migrate(held_back, "b")


async def test_names_are_those_that_are_known(ordered: Ordered) -> None:
    with pytest.raises(RefusalError, match="unknown role 'prefil'; did you mean 'prefill'"):
        await ordered.operations.flip("a", "prefil", 60.0)
    with pytest.raises(RefusalError, match="unknown instance ''; known are a, b"):
        await ordered.operations.flip("", "prefill", 60.0)
    for order in (ordered.operations.drain_instance, ordered.operations.resume_instance):
        with pytest.raises(RefusalError, match="unknown instance 'c'"):
            order("c")
    assert not ordered.events


async def test_one_instance_is_drained_and_used_again_but_never_the_last(ordered: Ordered) -> None:
    ordered.operations.drain_instance("b")
    ordered.operations.resume_instance("b")
    drained, resumed = ordered.events
    assert isinstance(drained, InstanceDrained) and isinstance(resumed, InstanceResumed)
    assert drained.instance == resumed.instance == 1
    ordered.drained.add(1)
    with pytest.raises(RefusalError, match="no other instance could take what is on a; llmd ctl"):
        ordered.operations.drain_instance("a")
    ordered.drained.clear()
    ordered._runtime.worker_lost(1, blamed=False)
    with pytest.raises(RefusalError, match="no other instance could take"):
        ordered.operations.drain_instance("a")
    assert len(ordered.events) == 2


async def test_orders_between_instances_come_too_early(house_of: Build, tmp_path: Path) -> None:
    parts = parts_of(load(), house_of().link)
    status = DaemonStatus(parts)
    early = Operations(parts, load, lambda: status)
    for order in (early.drain_instance, early.resume_instance):
        with pytest.raises(RefusalError, match="yet: starting"):
            order("a")
    with pytest.raises(RefusalError, match="yet: starting"):
        await early.flip("a", "decode", 60.0)
    with pytest.raises(RefusalError, match="yet: starting"):
        early.migrate(1, "a")


async def test_snapshots_tell_transfers_flips_and_the_slowest_steps(
    ordered: Ordered, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = TransferStatus(3, 128, "a", "b", 9, 9000, 0.1, 0.4, True, False)
    whole = ordered._core(0.0)
    monkeypatch.setattr(
        ordered, "_core", lambda _now: msgspec.structs.replace(whole, transfers=(going,))
    )
    assert ordered.snapshot().transfers == (going,)
    monkeypatch.undo()
    runtime = ordered._runtime
    for _ in range(10):
        runtime.recent_steps[1].add(asyncio.get_running_loop().time(), 0.05)
    first, second = ordered.snapshot().instances
    assert first.step_p99_s == 0.0
    assert second.step_p99_s == pytest.approx(0.05, rel=0.02)
    assert ordered.gauges(0.0).instances[1].step_p99_s == second.step_p99_s
