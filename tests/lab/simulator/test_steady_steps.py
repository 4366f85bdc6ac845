"""Many steps at once are the same steps one by one: same state, same actions, same report."""

import copy
import random
from collections import deque
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.core import Core
from daemon.core.instance.steady_steps import Flying, SteadySteps, StepClock
from daemon.core.values.actions import Action, Deliver, Started, Submit, WakeAt
from daemon.core.values.events import StepDone, Tick
from daemon.core.view.view import snapshot
from daemon.cost.profile import Fit
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import ScenarioLimits, WorkerFault
from daemon.memory.block_pool import BlockPool
from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.steady_run import SteadyRun
from daemon.wire.columns import UInt8, encoder
from tests.lab.simulator.made import CURVES, DEVICE, phases, prepared, profile, workload
from tests.soak import SOAK, tries

GPU = msgspec.structs.replace(DEVICE, name="made", host_link=msgspec.structs.replace(
    DEVICE.host_link, bytes_per_s=1e9
))  # fmt: skip
FIRST = tries(10, 60)
"""Runs of a scenario that are compared: to copy a Core takes as long as hundreds of its steps."""
LEFT_OUT = {"_heap", "_starvation", "_actions", "_views", "_handlers", "_decide_timed", "elsewhere"}
"""What is dropped when it comes up, made anew when it is asked for, a way to call something, or
leads to other instances."""


def calm_scenario(policy: str, seed: int) -> Prepared:
    """Few arrivals and long answers, on one to three instances with room or without."""
    chance = random.Random(seed)
    num = chance.randint(3, 14)
    gap_s = chance.choice([0.0, 0.02, 0.3])
    scale = chance.choice([0.2, 1.0, 8.0])
    step = chance.choice([phases((0.004 * scale, 1e-5, 1e-8), (0.003 * scale, 1e-6, 1e-5)), CURVES])
    fit = Fit(num_points=1, mape=0.0, noise_sigma=chance.choice([0.0, 0.1, 0.5]))
    one = profile(step, fit=fit, device=chance.choice([GPU, DEVICE]))
    requests = workload(
        np.cumsum([chance.choice([0.0, gap_s * chance.random()]) for _ in range(num)]).tolist(),
        [chance.choice([1, 5, chance.randint(1, 90)]) for _ in range(num)],
        [chance.choice([1, chance.randint(1, 40), chance.randint(40, 150)]) for _ in range(num)],
        [(chance.randint(0, 1),) * chance.randint(1, 5) for _ in range(num)],
        16,
    )
    count = chance.randint(1, 3)
    faults = (WorkerFault(instance=0, at_s=0.2, restart_s=0.05),) if chance.random() < 0.2 else ()
    limits = ScenarioLimits(
        max_running=chance.choice([2, 4, 16]),
        max_batch_tokens=chance.choice([16, 64]),
        prefill_chunk=chance.choice([8, 32]),
        max_len=256,
        depth=chance.choice([0, 0, 1, 2, 3]),
        block_size=chance.choice([4, 16]),
        swap=chance.choice(["", *SWAP_MODES]),
        exact_max_tokens=chance.random() < 0.3,
        starve_s=chance.choice([0.1, 10.0]),
        max_pause_s=chance.choice([None, 0.0, 0.2]),
    )
    return prepared(
        [one] * count,
        requests,
        num_blocks=chance.choice([70, 90, 500]),
        limits=limits,
        host_bytes=chance.choice([0.0, 64e9]),
        policy=policy,
        predictor=chance.choice(["none", "noisy:0.5"]),
        seed=seed,
        n=chance.choice([1, 1, 1, 2]),
        fault=faults,
    )


def told(log: RunLog) -> object:
    """A run's log without the times of the machine that ran it."""
    return plain([log.requests, log.instances, log.virtual_s, log.handoffs, log.flips])


def plain(value: Any, seen: dict[int, int] | None = None) -> object:
    """An object as numbers, words, lists and dicts of them; where it comes again, as a number."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, int | float | str | bytes | Enum | np.generic):
        return repr(value)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", "")
    config = getattr(value, "__struct_config__", None)
    if not (isinstance(value, tuple) or (config and config.frozen)):  # which are what they hold
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [[plain(key, seen), plain(kept, seen)] for key, kept in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque) or hasattr(value, "typecode"):
        return [plain(one, seen) for one in value]
    names = getattr(value, "__struct_fields__", None) or [
        *getattr(value, "__dict__", {}),
        *(name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())),
    ]
    fields = {name: getattr(value, name, None) for name in names if name not in LEFT_OUT}
    return [type(value).__name__, {name: plain(kept, seen) for name, kept in fields.items()}]


def difference(one: object, other: object, path: str = "") -> str:
    """The first place in which two plain objects differ; empty: none."""
    if one == other:
        return ""
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        pairs = [(name, one[name], other[name]) for name in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(str(place), *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    else:
        return f"{path}: {one} and {other}"
    return next(found for name, *pair in pairs if (found := difference(*pair, f"{path}.{name}")))


def copied(core: Core) -> Core:
    """Another Core in the same state."""
    twin = copy.deepcopy(core)
    for instance in twin.instances:
        for pool in (instance.kv.pool, instance.scheduler.residency.space.pool):
            if isinstance(pool, BlockPool):  # a view of the same memory, which is copied apart
                pool._owners_column = np.frombuffer(pool._owners, np.int32)
    return twin


class Twin:
    """A Core of the same state, to which single events are told instead of the run."""

    def __init__(self, core: Core, index: int, in_flight: list[Flying]) -> None:
        self.core = copied(core)
        self.index, self.flying = index, list(in_flight)
        self.tokens: list[list[int]] = []
        self.wake_s = core.wake_at_s

    def live(self, steps: SteadySteps, was_due_s: float) -> None:
        """Tell each tick and answer of the run, as far as it went."""
        instance = self.core.instances[self.index]
        planned = deque([*steps.answered, *steps.flying][len(self.flying) :])
        num_answers, num_plans = len(steps.answered), steps.num_plans
        self.now = 0.0
        while num_answers or num_plans:
            flying = self.flying
            actions: list[Action]
            if num_plans and instance.due_s < flying[0].end_s:
                self.now = instance.due_s
                actions = self.core.handle(Tick(self.now))
            else:
                done, step = flying.pop(0), instance.scheduler.in_flight.steps[0]
                self.now = done.end_s
                reasons = np.zeros(step.slots.size, np.uint8)
                elapsed_s = done.end_s - done.start_s
                actions = self.core.handle(
                    StepDone(self.now, self.index, step.step, reasons, elapsed_s)
                )
                num_answers -= 1
            for action in actions:
                if isinstance(action, Submit) and action.batch.instance != self.index:
                    continue  # whose own tick would have come
                if isinstance(action, Submit):
                    assert action.work == planned[0].work
                    assert not action.batch.joined_slots.size
                    flying.append(planned.popleft())
                    num_plans -= 1
                elif isinstance(action, Deliver):
                    assert not action.reasons.any()
                    self.tokens.append(sorted(action.sequences.tolist()))
                else:
                    assert isinstance(action, WakeAt | Started), action


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[SteadySteps]:
    """The runs that a Core took, of which each of the first ones is compared with single events."""
    runs: list[SteadySteps] = []
    take, encode = Core.take_steps, encoder().encode

    def taken(
        core: Core,
        index: int,
        now: float,
        until_s: float,
        in_flight: list[Flying],
        reasons: list[UInt8],
        clock: StepClock,
    ) -> tuple[SteadySteps, list[Action]] | None:
        looked_at = len(runs) < FIRST and SteadyRun.of(core.instances[index].scheduler)
        twin = Twin(core, index, in_flight) if looked_at else None
        found = take(core, index, now, until_s, in_flight, reasons, clock)
        if found is None:
            return None
        steps, _ = found
        runs.append(steps)
        if twin is None:
            return found
        twin.live(steps, now)
        assert twin.tokens == [sorted(steps.sequences.tolist())] * len(steps.answered)
        assert twin.flying == steps.flying
        assert twin.now < until_s
        other, here = twin.core.instances[index], core.instances[index]
        assert not difference(plain(other), plain(here))
        assert encode(other.status()) == encode(here.status())
        if len(core.instances) == 1:
            assert encode(snapshot(twin.core, twin.now)) == encode(snapshot(core, twin.now))
            assert not difference(plain(twin.core.counters), plain(core.counters))
        return found

    monkeypatch.setattr(Core, "take_steps", taken)
    return runs


@settings(max_examples=tries(2, 200), deadline=None, derandomize=not SOAK)
@given(seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_run_reports_what_its_single_events_do(policy: str, seed: int) -> None:
    scenario = calm_scenario(policy, seed)
    seen: list[None] = []  # a look at each event leaves each of them to itself
    one_by_one = run(scenario, Options(after_event=lambda _: seen.append(None)))
    assert told(run(scenario)) == told(one_by_one)
    assert seen


@pytest.mark.parametrize("policy", ["sarathi", "gittins", "mlfq", "orca", "srtf"])
@pytest.mark.parametrize("seed", range(tries(3, 60)))
def test_each_run_leaves_the_state_of_its_single_events(
    policy: str, seed: int, checked: list[SteadySteps]
) -> None:
    run(calm_scenario(policy, 100 + seed))


def test_most_decodes_are_taken_together(checked: list[SteadySteps]) -> None:
    one = profile(phases((0.02, 1e-5, 0.0), (0.02, 1e-6, 1e-5)), device=GPU)
    requests = workload([0.0, 0.1, 0.2], [5, 9, 30], [200, 150, 170])
    log = run(prepared([one, one], requests, limits=ScenarioLimits(max_len=256)))
    assert sum(len(steps.answered) for steps in checked) > 0.9 * sum(
        instance.steps for instance in log.instances
    )
    assert len(checked) < 20
