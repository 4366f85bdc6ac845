"""Scenarios drawn at random for the promise of `scheduler.max_pause_s` between instances."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from daemon.core.core import Core
from daemon.core.instance.instance import WorkerState
from daemon.core.values.events import Event, FlipOrdered, InstanceDrained, InstanceResumed
from daemon.cost.profile import LinkSpec
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.recorder import Recorder
from daemon.lab.simulator.run import Prepared, _machine, configured
from daemon.lab.simulator.scenario import HandoffSpec, ScenarioLimits, WorkerFault
from daemon.lab.simulator.simulator import Extras, Simulator
from daemon.lab.simulator.traffic import traffic_of
from daemon.lab.simulator.workers import chances
from daemon.length_models.registry import length_predictor
from daemon.memory.sizing import block_bytes
from daemon.state.request import request_of
from daemon.state.role import Role
from tests.lab.simulator.made import DEVICE, MODEL, phases, prepared, profile, workload

MAX_LEN, MAX_PAUSE_S, TOKEN_S = 192, 5.0, 0.0005
MOST_POOLS = 2.5
"""More than this of all begun answers, by their true lengths, does not fit: written down here too,
so that a change of the daemon's own number is seen."""
ROLES = (
    ("mixed",),
    ("mixed", "mixed"),
    ("prefill", "decode"),
    ("prefill", "mixed"),
    ("prefill", "decode", "decode"),
    ("mixed", "mixed", "mixed"),
    ("prefill", "prefill", "decode"),
)


@dataclass(frozen=True)
class Drawn:
    """A scenario, the events of its run, and the times of its machine."""

    prepared: Prepared
    told: tuple[Event, ...]
    longest_step_s: float
    longest_move_s: float

    @property
    def promised_s(self) -> float:
        """The longest gap that keeps the promise."""
        return MAX_PAUSE_S + self.longest_step_s + self.longest_move_s


def draw(seed: int) -> Drawn:
    """Bursts that want several pools, on one to three instances, with whatever may happen."""
    chance = random.Random(seed)
    roles = chance.choice(ROLES)
    step_s, budget = chance.choice([0.05, 0.1]), chance.choice([32, 64, 256])
    bytes_per_s = chance.choice([1e6, 1e9])
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(bytes_per_s))
    one = profile(phases((step_s, TOKEN_S, 0.0), (step_s, 0.0, 0.0)), device=device)
    limits = ScenarioLimits(
        max_running=chance.choice([8, 16, 64]),
        max_batch_tokens=budget,
        max_len=MAX_LEN,
        block_size=chance.choice([4, 16]),
        prefix_cache=chance.random() < 0.5,
        depth=chance.choice([1, 2]),
        swap=chance.choice(["proactive", "proactive", "reactive", "recompute"]),
        max_pause_s=MAX_PAUSE_S,
    )
    num = chance.randint(20, 40) * len(roles)
    gaps = [chance.choice([0, 0, 2, 5, 20]) * step_s / len(roles) for _ in range(num)]
    prompts = [chance.randint(1, 60) for _ in gaps]
    tails = [min(120, int(8 * chance.paretovariate(1.1))) for _ in gaps]
    answers = tails if chance.random() < 0.5 else [chance.randint(60, 100) for _ in gaps]
    shared = [(chance.randint(0, 3),) if prompt > limits.block_size else () for prompt in prompts]
    arrivals = np.cumsum(gaps).tolist()
    requests = workload(
        *(arrivals, prompts, answers),
        prefixes=shared if limits.prefix_cache else None,
        prefix_block=limits.block_size if limits.prefix_cache else 0,
    )
    least = MAX_LEN // limits.block_size
    made = prepared(
        [one] * len(roles),
        requests,
        num_blocks=least,
        limits=limits,
        policy="gittins",
        predictor=chance.choice(["none", "mean", "oracle", "noisy:1.5", "adversary"]),
        seed=seed,
        host_bytes=chance.choice([0.0, 64e9, 64e9]),
        roles=roles,
        handoff=HandoffSpec(bytes_per_s=chance.choice([1e6, 1e9])),
        n=chance.choice([1, 1, 3]),
    )
    block = block_bytes(MODEL, limits.block_size, MODEL.dtype)
    groups = tuple(
        msgspec.structs.replace(group, kv_bytes=float(block * chance.randint(least, 3 * least)))
        for group in made.groups
    )
    told, faults = _happenings(chance, len(roles), arrivals[-1] + 10.0)
    scenario = msgspec.structs.replace(made.scenario, fault=faults)
    made = Prepared(scenario, made.profiles, groups, made.max_len, made.workload)
    longest_step_s = step_s + budget * TOKEN_S
    copies_s = 2 * 128 * MAX_LEN / min(bytes_per_s, made.scenario.handoff.bytes_per_s)
    computed_s = -(-MAX_LEN // (budget // 4)) * longest_step_s  # the budget is for others too
    return Drawn(made, told, longest_step_s, max(copies_s, computed_s))


def _happenings(
    chance: random.Random, num: int, until_s: float
) -> tuple[tuple[Event, ...], tuple[WorkerFault, ...]]:
    """Flips, drains and deaths."""
    told: list[Event] = []
    faults: list[WorkerFault] = []
    if num > 1:
        for _ in range(chance.choice([0, 0, 1, 8])):
            at_s, role = chance.uniform(1.0, until_s), chance.choice(list(Role))
            told.append(FlipOrdered(at_s, chance.randrange(num), role))
        if chance.random() < 0.25:
            at_s, which = chance.uniform(1.0, until_s), chance.randrange(num)
            told.append(InstanceDrained(at_s, which))
            told.append(InstanceResumed(at_s + chance.choice([0.5, 3.0, 10.0]), which))
        if chance.random() < 0.25:
            at_s = chance.uniform(1.0, until_s)
            faults.append(WorkerFault(instance=chance.randrange(num), at_s=at_s, restart_s=2.0))
    return tuple(sorted(told, key=lambda event: event.now)), tuple(faults)


@dataclass
class Fit:
    """Since when the load did not fit, by true lengths; one that no time is in fits."""

    lengths: list[int]
    misfits_s: list[float] = field(default_factory=list)
    most_pools: float = 0.0

    @property
    def misfit_s(self) -> float:
        """From when to when it did not fit, at most."""
        return self.misfits_s[-1] - self.misfits_s[0] if self.misfits_s else 0.0

    def look(self, core: Core, now: float) -> None:
        """Whether what has begun fits into what serves now."""
        serving = [one for one in core.instances if one.state is WorkerState.READY]
        num_blocks = sum(one.scheduler.kv.pool.num_blocks for one in serving)
        num_slots = sum(one.limits.max_running for one in serving)
        if not serving:
            self.misfits_s.append(now)
            return
        kv = serving[0].scheduler.kv
        begun = [one for one in core.sequences.values() if one.num_output_tokens or one.slot >= 0]
        need = sum(kv.blocks_for(self.lengths[request_of(one.id)]) for one in begun)
        pools = max(need / num_blocks, len(begun) / num_slots)
        self.most_pools = max(self.most_pools, pools)
        if pools > MOST_POOLS:
            self.misfits_s.append(now)


def simulate(drawn: Drawn, look: Callable[[Core, float], None] | None = None) -> RunLog:
    """Run it; `look` sees the Core after each event."""
    made = drawn.prepared
    config, scenario = configured(made), made.scenario
    block_size = scenario.limits.block_size
    traffic = traffic_of(made.workload, made.max_len, block_size, 0.0, False, scenario.n, 1, True)
    recorder = Recorder(traffic.log(), made.profiles, config.instances, traffic.n)
    chance, *noises = chances(scenario.seed, 1 + len(config.instances))
    extras = Extras(
        predictor=length_predictor(scenario.predictor),
        chance=chance,
        inputs=drawn.told,
        faults=scenario.fault,
    )
    machine = _machine(made, config, traffic, noises, None)
    simulator = Simulator(config, traffic, machine, recorder, extras)
    if look is not None:
        handle = simulator.core.handle

        def watched(event: Event) -> list:  # type: ignore[type-arg]
            actions = handle(event)
            look(simulator.core, event.now)
            return actions

        simulator.core.handle = watched  # type: ignore[method-assign]
    return simulator.run()
