"""Orders between instances: each reaches the Core as an event, or is refused with a sentence."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from daemon.config.load import load
from daemon.control.orders import RefusalError
from daemon.core.values.actions import Action
from daemon.core.values.events import (
    Event,
    FlipOrdered,
    InstanceDrained,
    InstanceResumed,
    MigrationOrdered,
)
from daemon.protocol.control import Flipped, Migrating
from daemon.protocol.worker import Plan, Ready
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.operations import Operations
from daemon.runtime.serving import ServingStatus
from daemon.runtime.status import DaemonStatus
from daemon.state.role import Role
from tests.hangs import HANG_S
from tests.runtime.ends import SERVED, House, generate, parts_of, until

ORDERS = (FlipOrdered, MigrationOrdered, InstanceDrained, InstanceResumed)


class TwoCards(House):
    """A house whose second worker takes plans and answers none."""

    def __init__(self, **changes: object) -> None:
        self.second: list[Plan] = []
        super().__init__(instances=2, **changes)

    def _send_plan(self, instance: int, plan: Plan) -> None:
        if instance:
            self.second.append(plan)
        else:
            super()._send_plan(instance, plan)


class Ordered:
    """Orders to two instances that are ready: a with 256 tokens, b with 16; one sequence is on a.

    What comes of an order is the Core's; which events it got is noted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.house = TwoCards()
        self.runtime = self.house.runtime
        self.core = self.runtime.core
        parts = parts_of(load(), self.house.link)
        self.status = ServingStatus(parts, "", SERVED, self.runtime, GpuWatch(()))
        self.operations = Operations(parts, load, lambda: self.status)
        self.events: list[Event] = []
        handle = self.core.handle

        def noting(event: Event) -> list[Action]:
            if isinstance(event, ORDERS):
                self.events.append(event)
            return handle(event)

        monkeypatch.setattr(self.core, "handle", noting)

    async def begin(self, max_tokens: int = 60, n: int = 1) -> int:
        """Both workers are ready, and a request is on a; its last sequence."""
        self.house.ready()
        self.house.paused = True
        self.house.api.send(generate(1, [1, 2, 3], max_tokens, n=n))
        await until(lambda: bool(self.house.plans))
        self.second_ready(4)
        return max(self.core.sequences)

    async def begin_to_draw(self) -> int:
        """As `begin`, and its answer has begun; no step answers after that."""
        sequence = await self.begin()
        self.house.resume()
        await until(lambda: self.core.sequences[sequence].first_token_s >= 0.0)
        self.house.paused = True
        return sequence

    def second_ready(self, num_blocks: int) -> None:
        """The second worker begins anew."""
        self.runtime.worker_ready(1, Ready(num_blocks, 1, 1, 0.001))


@pytest.fixture
async def ordered(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ordered]:
    made = Ordered(monkeypatch)
    yield made
    made.house.close()


async def test_a_flip_is_answered_when_its_first_work_was_sent(ordered: Ordered) -> None:
    sequence = await ordered.begin_to_draw()
    ordered.second_ready(64)
    await ordered.operations.flip("a", "prefill", 0.0)
    order = asyncio.create_task(ordered.operations.flip("b", "decode", 60.0))
    await asyncio.sleep(0)  # it begins
    await asyncio.sleep(0.05)
    assert not order.done() and not ordered.house.second
    ordered.operations.migrate(sequence, "b")
    ordered.house.resume()
    async with asyncio.timeout(HANG_S):
        done = await order
    assert ordered.house.second, "the sequence goes on there"
    assert (done.number, done.instance, done.was, done.role) == (2, "b", "mixed", "decode")
    assert done.flip_s >= 0.05 and not done.idle
    event = ordered.events[1]
    assert isinstance(event, FlipOrdered)
    assert (event.instance, event.role, event.why) == (1, Role.DECODE, "operator")


async def test_each_of_two_flips_at_once_is_answered_for_its_own_work(ordered: Ordered) -> None:
    """The first has no work to wait for; the second, ordered before the first is awaited, has."""
    await ordered.begin_to_draw()
    idle = asyncio.create_task(ordered.operations.flip("a", "prefill", 60.0))
    working = asyncio.create_task(ordered.operations.flip("b", "decode", 60.0))
    async with asyncio.timeout(HANG_S):
        done = await idle
    assert (done.number, done.instance, done.idle) == (1, "a", True)
    assert not working.done()
    working.cancel()


async def test_a_flip_that_no_work_waits_for_is_answered_at_once(ordered: Ordered) -> None:
    await ordered.begin()
    async with asyncio.timeout(HANG_S):
        done = await ordered.operations.flip("b", "prefill", 60.0)
    assert done.idle and done.flip_s == -1.0


async def test_a_flip_to_the_role_it_has_only_keeps_it_there(ordered: Ordered) -> None:
    await ordered.begin()
    same = await ordered.operations.flip("a", "mixed", 60.0)
    assert same == Flipped(0, "a", Role.MIXED, Role.MIXED, 0.0, 0.0, False)
    (event,) = ordered.events
    assert isinstance(event, FlipOrdered) and event.role is Role.MIXED
    assert ordered.core.counters.flips == 0


@pytest.mark.parametrize("wait_s", [0.0, 0.1])
async def test_a_flip_without_work_is_waited_for_no_longer_than_is_asked(
    ordered: Ordered, wait_s: float
) -> None:
    await ordered.begin_to_draw()
    await ordered.operations.flip("a", "prefill", 0.0)
    async with asyncio.timeout(HANG_S):
        late = await ordered.operations.flip("b", "decode", wait_s)
    assert (late.flip_s, late.idle) == (-1.0, False)


async def test_a_sequence_is_ordered_elsewhere(ordered: Ordered) -> None:
    sequence = await ordered.begin()
    ordered.second_ready(64)
    assert ordered.operations.migrate(sequence, "b") == Migrating(sequence, "a", "b")
    (event,) = ordered.events
    assert isinstance(event, MigrationOrdered)
    assert (event.sequence, event.instance) == (sequence, 1)
    ordered.house.resume()
    await until(lambda: bool(ordered.house.second))


async def test_what_cannot_move_is_refused_with_a_sentence(ordered: Ordered) -> None:
    migrate, sequence = ordered.operations.migrate, await ordered.begin()
    for number, name, words in (
        (sequence, "A", "unknown instance 'A'"),
        (7, "b", r"there is no sequence 7 \(any more\)"),
        (sequence, "a", f"sequence {sequence} is on a already"),
        (sequence, "b", f"b cannot hold sequence {sequence}: it may grow to 63 tokens, and there "
                        "is room for 16"),
    ):  # fmt: skip
        with pytest.raises(RefusalError, match=words):
            migrate(number, name)
    ordered.core.sequences[sequence].strikes = 1
    with pytest.raises(RefusalError, match=f"sequence {sequence} may have ended a worker"):
        migrate(sequence, "b")
    ordered.core.sequences[sequence].strikes = 0
    ordered.operations.drain_instance("b")
    with pytest.raises(RefusalError, match="b is drained: llmd ctl resume b comes first"):
        migrate(sequence, "b")
    ordered.runtime.worker_lost(1, blamed=False)
    with pytest.raises(RefusalError, match="the worker of b is not ready: lost"):
        migrate(sequence, "b")
    assert [type(one) for one in ordered.events] == [InstanceDrained]


async def test_a_stream_that_waits_for_anothers_prompt_has_no_place_to_leave(
    ordered: Ordered,
) -> None:
    held_back = await ordered.begin(8, n=2)
    with pytest.raises(RefusalError, match=f"sequence {held_back} is on no instance yet"):
        ordered.operations.migrate(held_back, "b")


async def test_names_are_those_that_are_known(ordered: Ordered) -> None:
    await ordered.begin()
    with pytest.raises(RefusalError, match="unknown role 'prefil'; did you mean 'prefill'"):
        await ordered.operations.flip("a", "prefil", 60.0)
    with pytest.raises(RefusalError, match="unknown instance ''; known are a, b"):
        await ordered.operations.flip("", "prefill", 60.0)
    for order in (ordered.operations.drain_instance, ordered.operations.resume_instance):
        with pytest.raises(RefusalError, match="unknown instance 'c'"):
            order("c")
    assert not ordered.events


async def test_one_instance_is_drained_and_used_again_but_never_the_last(ordered: Ordered) -> None:
    await ordered.begin()

    def drained() -> list[bool]:
        return [one.drained for one in ordered.status.snapshot().instances]

    ordered.operations.drain_instance("b")
    assert drained() == [False, True]
    with pytest.raises(RefusalError, match="no other instance could take what is on a; llmd ctl"):
        ordered.operations.drain_instance("a")
    ordered.operations.resume_instance("b")
    assert drained() == [False, False]
    ordered.runtime.worker_lost(1, blamed=False)
    with pytest.raises(RefusalError, match="no other instance could take"):
        ordered.operations.drain_instance("a")
    assert [type(one) for one in ordered.events] == [InstanceDrained, InstanceResumed]


async def test_orders_between_instances_come_too_early(ordered: Ordered) -> None:
    parts = parts_of(load(), ordered.house.link)
    status = DaemonStatus(parts)
    early = Operations(parts, load, lambda: status)
    for order in (early.drain_instance, early.resume_instance):
        with pytest.raises(RefusalError, match="yet: starting"):
            order("a")
    with pytest.raises(RefusalError, match="yet: starting"):
        await early.flip("a", "decode", 60.0)
    with pytest.raises(RefusalError, match="yet: starting"):
        early.migrate(1, "a")


async def test_snapshots_tell_roles_flips_and_the_slowest_steps(ordered: Ordered) -> None:
    await ordered.begin()
    await ordered.operations.flip("b", "prefill", 0.0)
    for _ in range(10):
        ordered.runtime.recent_steps[1].add(time.monotonic(), 0.05)
    told = ordered.status.snapshot()
    assert [(one.number, one.instance, one.role) for one in told.flips] == [(1, "b", "prefill")]
    assert [one.role for one in told.instances] == ["mixed", "prefill"]
    assert told.transfers == () and told.counters.flips == 1
    first, second = told.instances
    assert first.step_p99_s == 0.0
    assert second.step_p99_s == pytest.approx(0.05, rel=0.02)
    assert ordered.status.gauges(0.0).instances[1].step_p99_s == second.step_p99_s
