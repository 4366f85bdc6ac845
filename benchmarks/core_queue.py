"""What each kind of event costs the Core while thousands wait, on one instance and on many.

All instances together have `waiting` sequences in their queues; more than one have roles, half of
them for prompts. Frequent events come while answers of 2 to 30 tokens end and are replaced, so that
all that a daemon does in its steady state is among them: handoffs, balancing, ranks made anew.
Rare ones are timed once each, in Cores of their own; what they put off is in the events after them,
of which the dearest is told.

Before and after a change: `python -m benchmarks.core --waiting 1000 10000` in both trees.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from daemon.base.garbage import settle
from daemon.core.core import Core
from daemon.core.values.actions import Action, Deliver, Send, Submit, WakeAt
from daemon.core.values.events import (
    Abort,
    Configured,
    CopiesDone,
    Event,
    FlipOrdered,
    InstanceConfig,
    InstanceDrained,
    LinkChanged,
    PolicyChosen,
    Predicted,
    RequestArrived,
    StepDone,
    Tick,
    TransferEnded,
    WorkerLost,
    WorkerReady,
)
from daemon.state.batch import Batch
from daemon.state.role import Role

Clock = Callable[[], float]
STEP_S, COPY_S, TOKEN_S = 0.03, 1e-4, 1e-4
PLACES, BLOCKS = 64, 1200
SHORTEST, LONGEST, MAX_TOKENS = 2, 30, 4000
MEASURED_STEPS = 600
AFTER = 200


class Crowd:
    """A Core whose queues are long, and workers that answer at once."""

    def __init__(
        self,
        policy: str,
        num_instances: int,
        waiting: int,
        clock: Clock,
        lengths: tuple[int, int] = (SHORTEST, LONGEST),
    ) -> None:
        half = [Role.PREFILL] * (num_instances // 2) + [Role.DECODE] * (num_instances // 2)
        roles = half or [Role.MIXED]
        names = tuple(InstanceConfig(f"i{i}", one, "cuda", 1, True) for i, one in enumerate(roles))
        self.core = Core(
            Configured(0.0, names, policy, 16, PLACES, 512, 512, 10**9, 8192, True, depth=1)
        )
        self._clock, self._chance, self._lengths = clock, random.Random(1), lengths
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
        self._now, self._request = 0.0, 0
        self._flying: dict[int, deque[Batch]] = {i: deque() for i in range(len(roles))}
        self._sends: dict[int, Send] = {}
        self._left: dict[int, int] = {}  # tokens that each sequence will yet draw
        self._wake = False
        for index in range(len(roles)):
            ready = WorkerReady(0.0, index, BLOCKS, 1, STEP_S, 0, COPY_S, TOKEN_S)
            self.handle(ready)
        for source in range(len(roles)):
            for target in range(len(roles)):
                if source != target:
                    number = source * len(roles) + target
                    self.handle(LinkChanged(0.0, target, source, False, True, number))
                    self.handle(LinkChanged(0.0, source, target, True, True, number))
        self._most = waiting + PLACES * (len(half) // 2 or 1)
        for _ in range(self._most):
            self.arrive()

    def handle(self, event: Event) -> None:
        """Give the Core an event, and note what it took."""
        start_s = self._clock()
        actions = self.core.handle(event)
        self.times_s[type(event).__name__].append(self._clock() - start_s)
        for action in actions:
            self._take(action)

    def _take(self, action: Action) -> None:
        match action:
            case Submit(batch=batch):
                self._flying[batch.instance].append(batch)
            case Send():
                self._sends[action.transfer] = action
            case Deliver():
                for sequence in action.sequences.tolist():
                    if sequence in self._left:
                        self._left[sequence] -= 1
            case WakeAt(time_s=time_s):
                self._wake = time_s <= self._now

    def arrive(self) -> None:
        """One more request, and what is predicted of it."""
        self._request += 1
        chance, number = self._chance, self._request
        self._left[number * 128] = chance.randint(*self._lengths)
        self.handle(RequestArrived(self._now, number, chance.randint(20, 200), MAX_TOKENS))
        self.handle(Predicted(self._now, number, told := chance.randint(2, 60), 2 * told))

    def round(self) -> None:
        """Every worker answers once; as many come as ended, and one client goes away."""
        self._now += STEP_S / 2
        for index in self._flying:
            self._answer(index)
        for send in list(self._sends.values()):
            del self._sends[send.transfer]
            ended = send.transfer, send.blocks.size, 1e-3
            self.handle(TransferEnded(self._now, send.target, *ended))
            self.handle(TransferEnded(self._now, send.source, *ended))
        while self._wake:
            self._wake = False
            self.handle(Tick(self._now))
        self._now += STEP_S / 2
        requests = {one.request for one in self.core.sequences.values() if one.slot < 0}
        if requests:  # else all have slots: streams that wait go where there is room
            self.handle(Abort(self._now, max(requests)))
        while len(self.core.sequences) < self._most:
            self.arrive()

    def settle(self) -> None:
        """Some rounds that do not count, and no garbage of the beginning."""
        for _ in range(20):
            self.round()
        settle()
        self.times_s.clear()

    def _answer(self, index: int) -> None:
        if not self._flying[index]:
            return
        batch = self._flying[index].popleft()
        slots = batch.slots[batch.samples.astype(np.bool_)]
        running = self.core.instances[index].scheduler.running
        sequences = [sequence.id for sequence in running.at(slots)]
        reasons = np.array([self._left.get(one, 9) <= 1 for one in sequences], np.uint8)
        self.handle(StepDone(self._now, index, batch.step, reasons, STEP_S))
        if batch.out_blocks.size or batch.in_blocks.size:
            num_out, num_in = batch.out_blocks.size, batch.in_blocks.size
            times_s = COPY_S * num_out, COPY_S * num_in
            self.handle(
                CopiesDone(self._now, index, batch.step, num_out, times_s[0], num_in, times_s[1])
            )

    def rare(self, event: Event) -> float:
        """The seconds that one event took."""
        if isinstance(event, WorkerLost):
            self._flying[event.instance].clear()
        self.handle(event)
        return self.times_s[type(event).__name__].pop()

    @property
    def now(self) -> float:
        """The time of the newest event."""
        return self._now


FREQUENT = {
    "arrival": "RequestArrived",
    "prediction": "Predicted",
    "step": "StepDone",
    "abort": "Abort",
}


def frequent(policy: str, num_instances: int, waiting: int, clock: Clock) -> dict[str, Any]:
    """Median, p99 and maximum of each frequent kind, in microseconds."""
    crowd = Crowd(policy, num_instances, waiting, clock)
    crowd.settle()
    for _ in range(MEASURED_STEPS // max(1, num_instances // 4)):
        crowd.round()
    return {kind: spread(crowd.times_s[name]) for kind, name in FREQUENT.items()}


def rare(policy: str, num_instances: int, waiting: int, clock: Clock) -> dict[str, Any]:
    """What each rare event takes, and the dearest of those after it, in microseconds."""
    last = num_instances - 1
    asked: dict[str, Callable[[float], Event]] = {
        "policy": lambda now: PolicyChosen(now, "gittins" if policy == "packed" else "packed"),
    }
    if num_instances > 1:
        asked["death"] = lambda now: WorkerLost(now, 0, False)
        asked["flip"] = lambda now: FlipOrdered(now, 0, Role.DECODE, "")
        asked["drain"] = lambda now: InstanceDrained(now, 0)
        asked["flip of a decoder"] = lambda now: FlipOrdered(now, last, Role.PREFILL, "")
    found = {}
    for kind, event in asked.items():
        crowd = Crowd(policy, num_instances, waiting, clock)
        crowd.settle()
        took_s = crowd.rare(event(crowd.now))
        for _ in range(AFTER // num_instances):
            crowd.round()
        after_s = max(max(times) for times in crowd.times_s.values() if times)
        found[kind] = {"us": round(1e6 * took_s, 1), "after_us": round(1e6 * after_s, 1)}
    return found


def spread(times_s: list[float]) -> dict[str, float]:
    """Median, p99 and maximum, in microseconds."""
    times_us = 1e6 * np.array(times_s)
    median, p99 = np.percentile(times_us, [50, 99])
    found = {"median_us": median, "p99_us": p99, "max_us": times_us.max()}
    return {name: round(float(value), 1) for name, value in found.items()}


def report(
    policy: str, num_instances: int, waiting: int, clock: Clock, with_rare: bool = True
) -> dict[str, Any]:
    """Measure one size, print it, and return it."""
    result: dict[str, Any] = {"policy": policy, "instances": num_instances, "waiting": waiting}
    print(f"{policy}, {num_instances} instances, {waiting} waiting; us per event:")
    result |= frequent(policy, num_instances, waiting, clock)
    for kind in FREQUENT:
        one = result[kind]
        print(
            f"  {kind:18} median {one['median_us']:9.1f}  p99 {one['p99_us']:9.1f}"
            f"  max {one['max_us']:9.1f}"
        )
    if with_rare:
        for kind, one in (found := rare(policy, num_instances, waiting, clock)).items():
            print(f"  {kind:18}        {one['us']:9.1f}  dearest after it {one['after_us']:9.1f}")
        result |= found
    return result
