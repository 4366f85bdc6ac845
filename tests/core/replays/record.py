"""Records the lives that `test_replays` repeats: `python -m tests.core.replays.record`.

Record them anew only after a change that is meant to change what the Core does, or what its actions
consist of, and say so where the change is described. The events come from seeded drivers; the file
holds them, so that a replay depends on no driver.

The step-time model is fitted by a linear solver whose last bits differ between machines. So lives
are recorded with few times of steps (`LEARNED_STEPS` of each worker's life), too few for a fit.
`--learn PATH` records elsewhere, with every time: exact on one machine alone.
"""

import argparse
import random
from pathlib import Path

import msgspec

from daemon.core.core import Core
from daemon.core.values.actions import Action
from daemon.core.values.events import (
    Abort,
    Configured,
    DrainBegun,
    Event,
    PolicyChosen,
    Reconfigured,
    Resumed,
    StepDone,
    WorkerLost,
    WorkerReady,
)
from daemon.cost.profile import LinkSpec
from daemon.lab.simulator.recorder import Recorder
from daemon.lab.simulator.run import Prepared, _machine, configured
from daemon.lab.simulator.scenario import ScenarioLimits, WorkerFault
from daemon.lab.simulator.simulator import Extras, Simulator
from daemon.lab.simulator.traffic import traffic_of
from daemon.lab.simulator.workers import chances
from daemon.length_models.registry import length_predictor
from daemon.memory.swap_space import DYNAMIC, PROACTIVE, SWAP_MODES
from daemon.scheduler.policies import POLICIES
from tests.core.driver import Driver
from tests.core.replays.life import PATH, Chain, Life, write
from tests.core.traffic import random_driver, random_event
from tests.lab.simulator.made import CURVES, DEVICE, phases, prepared, profile, workload

AS_THE_POLICY_HAS_IT = ""

LEARNED_STEPS = frozenset({1, 6, 25})
"""Steps of a worker's life whose times are told."""


class Taped(Core):
    """A Core that records its events, and digests of its actions."""

    def __init__(self, config: Configured, learn: bool) -> None:
        super().__init__(config)
        self.events: list[Event] = []
        self.chain = Chain(self)
        self._learn = learn
        self._num_steps: dict[int, int] = {}  # of each instance's worker

    def handle(self, event: Event) -> list[Action]:
        if isinstance(event, WorkerReady | WorkerLost):
            self._num_steps[event.instance] = 0
        elif isinstance(event, StepDone):
            self._num_steps[event.instance] += 1
            if not self._learn and self._num_steps[event.instance] not in LEARNED_STEPS:
                event = msgspec.structs.replace(event, elapsed_s=0.0)
        self.events.append(event)
        actions = super().handle(event)
        self.chain.add(event, actions)
        return actions

    def life(self, name: str, config: Configured) -> Life:
        """All of it."""
        seen = self.chain.seen(self.events[-1].now)
        return Life(name, config, self.events, bytes(self.chain.links), self.chain.digest, seen)


def driven(policy: str, swap: str, seed: int, num_events: int, learn: bool) -> Life:
    """A life of the suite's driver: little memory, and every kind of event in a random order."""
    chance = random.Random(f"{policy} {swap} {seed}")
    drawn = random_driver(chance)
    stages = chance.choice([1, 1, 1, 2])
    instances = tuple(msgspec.structs.replace(one, stages=stages) for one in drawn.config.instances)
    config = msgspec.structs.replace(
        drawn.config, policy=policy, swap=swap, instances=instances, max_waiting=12
    )
    driver = Driver(config, 0, drawn.step_s, chance.choice([6, 40]), 1e-5, token_s=2e-3)
    core = driver.core = Taped(config, learn)
    for _ in range(num_events):
        for instance in range(len(config.instances)):
            if instance not in driver.workers and chance.random() < 0.2:
                driver.ready(instance, chance.randint(16, 40))
        _happen(driver, chance)
    for instance in range(len(config.instances)):
        if instance not in driver.workers:
            driver.ready(instance, 40)
    driver.settle()
    return core.life(f"driven, {policy}, {swap}, {seed}", config)


def _happen(driver: Driver, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.02:
        driver.drain()
        driver.arrive([1, 2, 3])
        driver.resume()
    elif kind < 0.03:
        driver.lose(chance.randrange(len(driver.config.instances)), blamed=True)
    elif kind < 0.04:
        driver.answer(0, fails=frozenset({0}))
    else:
        random_event(driver, chance)


def simulated(policy: str, swap: str, seed: int, num_requests: int, learn: bool) -> Life:
    """A life of the simulator: two instances, bursts beyond what they hold, one of which dies."""
    run = _prepared(policy, swap, seed, num_requests)
    scenario = run.scenario
    config = configured(run)
    edges = run.profiles[0].edges
    traffic = traffic_of(run.workload, run.max_len, scenario.limits.block_size, edges.request_s)
    recorder = Recorder(traffic.log(), run.profiles, config.instances)
    chance, *noises = chances(seed, 1 + len(config.instances))
    extras = Extras(
        predictor=length_predictor("noisy:0.4"),
        chance=chance,
        faults=scenario.fault,
        inputs=_orders(policy, num_requests),
        after_event=lambda core: None,  # so each event is taken alone, and recorded
    )
    machine = _machine(run, config, traffic, noises, None)
    simulator = Simulator(config, traffic, machine, recorder, extras)
    core = simulator.core = Taped(config, learn)
    simulator.run()
    return core.life(f"simulated, {policy}, {swap or 'its own'}, {seed}", config)


def _prepared(policy: str, swap: str, seed: int, num_requests: int) -> Prepared:
    chance = random.Random(f"{policy} {swap} {seed}")
    arrivals = sorted(round(chance.choice([0.0, 0.1]) + chance.random() / 20, 4)
                      for _ in range(num_requests))  # fmt: skip
    prompts = [chance.choice([8, 20, 40, 80]) + chance.randrange(20) for _ in arrivals]
    answers = [max(2, int(chance.lognormvariate(3.6, 0.7))) for _ in arrivals]
    shared = [tuple(range(100 * family, 100 * family + 12)) for family in range(3)]
    prefixes = [chance.choice(shared)[: length // 32] for length in prompts]
    limits = ScenarioLimits(
        max_running=12,
        max_batch_tokens=96,
        prefill_chunk=64,
        max_len=280,
        swap=swap,
        starve_s=0.1,
    )
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(2e7))
    steps = phases((0.002, 4e-5, 1e-9), (0.002, 2e-5, 1e-8))
    return prepared(
        [profile(steps, device=device), profile(CURVES, name="curves@made", device=device)],
        workload(arrivals, prompts, answers, prefixes, 16, priorities=(0, 2, 1)),
        num_blocks=18,
        limits=limits,
        host_bytes=6e4,
        noise=False,
        policy=policy,
        seed=seed,
        fault=(WorkerFault(instance=seed % 2, at_s=0.3, restart_s=0.05),),
    )


def _orders(policy: str, num_requests: int) -> list[Event]:
    """Further events: an operator's orders, and clients that go away."""
    names = sorted(POLICIES)
    other = names[(names.index(policy) + 4) % len(names)]
    return [
        *(Abort(0.03 * number, number * num_requests // 12) for number in range(1, 12)),
        Reconfigured(0.1, 1 << 30, 0.05),
        PolicyChosen(0.12, "speculative"),
        PolicyChosen(0.15, "srtf"),
        PolicyChosen(0.17, other),
        PolicyChosen(0.19, policy),
        DrainBegun(0.22),
        Resumed(0.23),
    ]


def lives(learn: bool, scale: int = 1) -> list[Life]:
    """All of them, the same for the same code."""
    policies = sorted(POLICIES)
    made = [
        driven(policy, swap, seed, 110 * scale, learn)
        for policy in policies
        for seed, swap in enumerate(SWAP_MODES)
        if swap != DYNAMIC or POLICIES[policy].swap == DYNAMIC
    ]
    for number, policy in enumerate(policies):
        other = SWAP_MODES[number % SWAP_MODES.index(DYNAMIC)]
        for swap in sorted({other, AS_THE_POLICY_HAS_IT, PROACTIVE}):
            made.append(simulated(policy, swap, number, 26 * scale, learn))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the lives that test_replays repeats.")
    parser.add_argument("--learn", type=Path, help="record here instead, with every step's time")
    parser.add_argument("--scale", type=int, default=1, help="how much longer lives are")
    arguments = parser.parse_args()
    made = lives(arguments.learn is not None, arguments.scale)
    size_bytes = write(made, arguments.learn or PATH)
    num_events = sum(len(one.events) for one in made)
    print(f"{len(made)} lives, {num_events} events, {size_bytes} bytes")


if __name__ == "__main__":
    main()
