"""The Core's cost per iteration, in isolation, beside a plain loop over sequence objects.

An iteration is one answered step with all that comes of it, StepDone to Submit: tokens counted,
sequences ended, their places taken by waiting ones, blocks found, and the next step's columns
built. Depth 1, three regimes:

steady  nobody ends while the clock runs: tokens counted, blocks grown from free ones (one of 16
        sequences in each step), the next step built.
churn   answers of 200 to 400 tokens, so that one of 300 sequences ends in a step: 0.9 at 256, 3.3
        at 1,000. All that they held is given back, a waiting one takes the place (a sixth of them
        with a cached prefix) and computes its prompt, whose blocks are named for the prefix
        cache. Every place is taken. The pool is full, so that blocks are taken from that cache.
tight   the same with a pool that binds before places do: 16 blocks for each place, of which a
        sequence holds 20 on average. So about a fifth of the places stay vacant, more where room is
        kept; what a policy does where somebody lacks a block is counted, and rows are told. The
        plain loop preempts nobody, and has no part in it.

Not counted in any: arrivals, which are events of their own, timed apart, since they come while the
worker computes; hashes of blocks that answers fill, which come with an answered step: steps with
one for each sixteenth sequence are timed apart; and the worker's answer.
Garbage collection: as in the daemon after its start (`daemon/base/garbage.py`); the collector
stays on. Both sides run in turns in one process. The clock is the thread's CPU time, so
that neighbours' time slices do not count; `--clock wall` counts them.

A policy that looks at predictions gets them (events, timed as arrivals are), from half the limit to
twice as much. One that reviews them gets a host pool, too; that swap copies have ended is an event
of the iteration. Means are told beside medians: steps in which somebody joins or ends are dearer
than those between, and policies differ in how many of an iteration's steps are which.

    python -m benchmarks.core [--policy sarathi mlfq speculative] [--running 256 1000]
                              [--iterations 2000] [--clock wall] [--json]
    python -m benchmarks.core --waiting 1000 10000 [--instances 1 4 16] [--policy gittins]

The second form times single events while thousands wait (`core_queue.py`).
"""

import argparse
import gc
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks import core_queue
from benchmarks.object_loop import ObjectLoop
from daemon.base.garbage import settle
from daemon.core.core import Core
from daemon.core.values.actions import Action, Deliver, Submit
from daemon.core.values.events import (
    Configured,
    CopiesDone,
    Event,
    InstanceConfig,
    Predicted,
    RequestArrived,
    StepDone,
    WorkerReady,
)
from daemon.core.view.view import snapshot
from daemon.memory.hashing import HASH_BYTES, chain_hashes
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import PREDICTION
from daemon.state.batch import Batch
from daemon.wire.columns import int32, int64

BLOCK_SIZE = 16
SPARE = 8  # sequences that wait, so that a place never stays vacant
TURN = 100
WARM_UP = 600
READY_MADE = 12_000
MAX_PROMPT = 250
STEP_S, COPY_S, TOKEN_S = 0.01, 1e-4, 1e-4
HOST_POOLS = 4
Clock = Callable[[], float]
GOALS_US = {256: (60.0, 250.0), 1000: (150.0, 500.0)}


@dataclass(frozen=True)
class Regime:
    """How long answers are, in tokens, and the blocks of the pool for each that runs."""

    name: str
    first_shortest: int  # of those that run at the beginning
    shortest: int
    longest: int
    blocks_each: int


CHURN = Regime("churn", first_shortest=1, shortest=200, longest=400, blocks_each=40)
TIGHT = Regime("tight", first_shortest=1, shortest=200, longest=400, blocks_each=16)


def steady(iterations: int) -> Regime:
    """A regime in which nobody ends in so many iterations after the warm-up."""
    longest = 2 * WARM_UP + iterations
    return Regime("steady", longest, longest, longest, (MAX_PROMPT + longest) // BLOCK_SIZE + 1)


class Traffic:
    """Arrivals, the same for both sides."""

    def __init__(self, seed: int, regime: Regime) -> None:
        self._chance = random.Random(seed)
        self._regime = regime
        self._shared = [self._tokens(160) for _ in range(8)]
        self._request = 0

    def arrival(self, now: float, shortest: int) -> RequestArrived:
        """A prompt of 50 to 250 tokens; every sixth begins like others did."""
        chance = self._chance
        tokens = self._tokens(chance.randint(50, MAX_PROMPT))
        if chance.random() < 1 / 6:
            tokens = chance.choice(self._shared) + tokens[:80]
        self._request += 1
        max_tokens = chance.randint(shortest, self._regime.longest)
        hashes = chain_hashes(tokens, BLOCK_SIZE)
        return RequestArrived(now, self._request, len(tokens), max_tokens, hashes=hashes)

    def crowd(self, count: int) -> Iterator[RequestArrived]:
        """Those of the beginning; their ages differ, where the regime lets them."""
        return (self.arrival(0.0, self._regime.first_shortest) for _ in range(count))

    def ready_made(self) -> Iterator[RequestArrived]:
        """Arrivals without end, tokenized and hashed before the clock runs, as another process
        does it; request numbers go on from the crowd's.
        """
        made = [self.arrival(0.0, self._regime.shortest) for _ in range(READY_MADE)]
        for number in itertools.count():
            yield replace(made[number % READY_MADE], request=100_000 + number)

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(30000) for _ in range(count)]


class CoreSide:
    """One Core with a worker that answers at once."""

    def __init__(
        self,
        running: int,
        seed: int,
        regime: Regime,
        clock: Clock,
        policy: str,
        slo_scale: float = 0.0,
    ) -> None:
        self._clock = clock
        self._slo_scale = slo_scale
        config = Configured(
            now=0.0,
            instances=(InstanceConfig("a", "mixed", "cpu"),),
            policy=policy,
            block_size=BLOCK_SIZE,
            max_running=running,
            max_batch_tokens=running + 512,
            prefill_chunk=512,
            max_waiting=4 * running,
            max_len=MAX_PROMPT + regime.longest,
            prefix_cache=True,
            depth=1,
        )
        self._traffic = Traffic(seed, regime).ready_made()
        self._core = Core(config)
        self._now = 0.0
        self._ended = 0
        self._batch: Batch | None = None
        self.arrivals_s: list[float] = []  # what each arrival cost
        self.num_ended = 0  # in all
        self.num_rows = 0  # likewise, of steps
        self.num_hashes = running // BLOCK_SIZE  # of answers' blocks in a step, in the mean
        self.calm = False  # whether nobody ended or joined in the newest iteration
        reviews = POLICIES[policy].reviews
        self._told = reviews or POLICIES[policy].reserves == PREDICTION
        num_blocks = running * regime.blocks_each
        host_blocks = HOST_POOLS * num_blocks if reviews else 0
        self._core.handle(WorkerReady(0.0, 0, num_blocks, 1, STEP_S, host_blocks, COPY_S, TOKEN_S))
        for first in Traffic(seed, regime).crowd(running + SPARE):
            self._arrive(first)

    def iterate(self, num_hashes: int = 0) -> float:
        """One iteration, with hashes of blocks of so many sequences; the seconds that the Core
        took.
        """
        assert self._batch is not None
        self._now += STEP_S
        reasons = np.zeros(np.count_nonzero(self._batch.samples), np.uint8)
        self.num_rows += self._batch.slots.size
        for arrival in itertools.islice(self._traffic, self._ended):
            self.arrivals_s.append(self._arrive(replace(arrival, now=self._now)))
        self._ended = 0
        batch, elapsed_s = self._batch, 0.0
        if batch.out_blocks.size or batch.in_blocks.size:
            counts = batch.out_blocks.size, batch.in_blocks.size
            ended = CopiesDone(
                self._now, 0, batch.step, counts[0], COPY_S * counts[0], counts[1],
                COPY_S * counts[1],
            )  # fmt: skip
            elapsed_s = self._timed(ended)
        done = StepDone(self._now, 0, batch.step, reasons, STEP_S)
        elapsed_s += self._timed(self._hashed(done, num_hashes) if num_hashes else done)
        self.num_ended += self._ended
        self.calm = not (self._ended or self._batch.joined_slots.size)
        return elapsed_s

    def _hashed(self, done: StepDone, num_hashes: int) -> StepDone:
        sequences = list(itertools.islice(self._core.sequences.values(), num_hashes))
        return replace(
            done,
            filled=int64([sequence.id for sequence in sequences]),
            filled_at=int32([len(sequence.hashes) for sequence in sequences]),
            hashes=b"".join(
                blake2b(f"{self._now} {sequence.id}".encode(), digest_size=HASH_BYTES).digest()
                for sequence in sequences
            ),
        )

    def watch(self) -> float:
        """A snapshot for viewers; the seconds that it took."""
        start_s = self._clock()
        snapshot(self._core, self._now)
        return self._clock() - start_s

    def _arrive(self, arrival: RequestArrived) -> float:
        """A request and, where policies want it, what is predicted of it; the Core's seconds."""
        elapsed_s = self._timed(replace(arrival, slo_scale=self._slo_scale))
        if self._told:
            low, high = arrival.max_tokens // 2, 2 * arrival.max_tokens
            said = low + arrival.request * 37 % (high - low)
            elapsed_s += self._timed(Predicted(arrival.now, arrival.request, said, 2 * said))
        return elapsed_s

    def _timed(self, event: Event) -> float:
        start_s = self._clock()
        actions = self._core.handle(event)
        elapsed_s = self._clock() - start_s
        self._take(actions)
        return elapsed_s

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Submit):
                self._batch = action.batch
            elif isinstance(action, Deliver):
                self._ended += int(np.count_nonzero(action.reasons))


class LoopSide:
    """The object loop under the same traffic."""

    def __init__(self, running: int, seed: int, regime: Regime, clock: Clock) -> None:
        self._clock = clock
        self._traffic = Traffic(seed, regime).ready_made()
        num_blocks = running * regime.blocks_each
        self._loop = ObjectLoop(num_blocks, BLOCK_SIZE, running, running + 512)
        self._now = 0.0
        self._ended = 0
        for first in Traffic(seed, regime).crowd(running + SPARE):
            self._loop.arrive(first)
        self._batch = self._loop.schedule()

    def iterate(self) -> float:
        """One iteration; the seconds that the loop took."""
        self._now += STEP_S
        arrivals = [replace(next(self._traffic), now=self._now) for _ in range(self._ended)]
        reasons = np.zeros(np.count_nonzero(self._batch.samples), np.uint8)
        done = StepDone(self._now, 0, self._batch.step, reasons, STEP_S)
        for arrival in arrivals:
            self._loop.arrive(arrival)
        start_s = self._clock()
        tokens, self._batch = self._loop.answer(done)
        elapsed_s = self._clock() - start_s
        self._ended = sum(1 for _, reason in tokens if reason)
        return elapsed_s


def quantiles(times_s: list[float]) -> dict[str, float]:
    """Median, p99 and mean in microseconds."""
    times_us = np.array(times_s) * 1e6
    median, p99 = np.percentile(times_us, [50, 99])
    found = {"median_us": median, "p99_us": p99, "mean_us": times_us.mean()}
    return {name: round(float(value), 1) for name, value in found.items()}


def measure(
    running: int, regime: Regime, iterations: int, clock: Clock, policy: str
) -> dict[str, Any]:
    """Both sides in turns, after a warm-up in which every sequence gets its place and age."""
    core = CoreSide(running, 1, regime, clock, policy)
    sides: dict[str, CoreSide | LoopSide] = {"core": core}
    if regime is not TIGHT:
        sides["loop"] = LoopSide(running, 1, regime, clock)
    for _ in range(WARM_UP):
        for side in sides.values():
            side.iterate()
    settle()
    ended_before, rows_before = core.num_ended, core.num_rows
    turns: dict[str, list[list[float]]] = {name: [] for name in sides}
    for _ in range(max(1, iterations // TURN)):
        for name, side in sides.items():
            turns[name].append([side.iterate() for _ in range(TURN)])
    num_ended, num_rows = core.num_ended - ended_before, core.num_rows - rows_before
    result: dict[str, Any] = {name: summary(times) for name, times in turns.items()}
    if "loop" in result:
        result["loop_over_core"] = {
            key: round(result["loop"][key] / value, 2) for key, value in result["core"].items()
        }
    if regime is CHURN:
        result |= beside(core)
    gc.unfreeze()
    num_iterations = len(turns["core"]) * TURN
    told = {"policy": policy, "running": running, "regime": regime.name}
    each = {
        "ends_per_iteration": round(num_ended / num_iterations, 2),
        "rows_per_iteration": round(num_rows / num_iterations, 1),
    }
    return {**told, **each, **result}


def summary(turns: list[list[float]]) -> dict[str, float]:
    """Quantiles of all, and the median of the turn that neighbours disturbed least."""
    quietest_s = min(float(np.median(turn)) for turn in turns)
    return {**quantiles(list(itertools.chain(*turns))), "quietest_us": round(quietest_s * 1e6, 1)}


def beside(core: CoreSide) -> dict[str, Any]:
    """What else a churning Core costs: iterations between two ends, and the other events."""
    calm_s = [one for one in (core.iterate() for _ in range(TURN * 10)) if core.calm]
    return {
        "calm_us": quantiles(calm_s)["median_us"] if calm_s else None,
        "arrival_event": quantiles(core.arrivals_s),
        "step_with_hashes": quantiles([core.iterate(core.num_hashes) for _ in range(1000)]),
    }


def report(result: dict[str, Any]) -> None:
    """Print one size and regime as a person reads it."""
    running, ends = result["running"], result["ends_per_iteration"]
    head = f"{result['policy']}, {result['regime']}, {running} places"
    rows = result["rows_per_iteration"]
    print(f"{head}, {rows} rows and {ends} ends an iteration; us per iteration:")
    for side in ("core", "loop"):
        if (times := result.get(side)) is None:
            continue
        quietest = f"median of the quietest {TURN}: {times['quietest_us']:.1f}"
        median = f"mean {times['mean_us']:7.1f}  median {times['median_us']:7.1f}"
        print(f"  {side} {median}  p99 {times['p99_us']:7.1f}  {quietest}")
    if (ratio := result.get("loop_over_core")) is not None:
        ratios = (
            f"{ratio['mean_us']:7.2f}         {ratio['median_us']:7.2f}      {ratio['p99_us']:7.2f}"
        )
        print(f"  loop / core {ratios}")
    if "calm_us" in result:
        arrival, hashed = result["arrival_event"], result["step_with_hashes"]
        print(f"  core where nobody ended or joined: median {result['calm_us']}")
        print(f"  core, an arrival: median {arrival['median_us']}, p99 {arrival['p99_us']}")
        print(f"  core, a step with hashes: median {hashed['median_us']}, p99 {hashed['p99_us']}")
    if running in GOALS_US and "loop" in result:
        median, p99 = GOALS_US[running]
        met = result["core"]["median_us"] <= median and result["core"]["p99_us"] <= p99
        print(f"  goal: median <= {median:.0f}, p99 <= {p99:.0f}: {'met' if met else 'MISSED'}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The Core's cost per iteration.")
    parser.add_argument("--policy", nargs="+", choices=sorted(POLICIES), default=["sarathi"])
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--waiting", type=int, nargs="+", help="time events beside such queues")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 4, 16])
    arguments = parser.parse_args()
    clock = thread_time if arguments.clock == "cpu" else perf_counter
    if arguments.waiting:
        for policy in arguments.policy:
            for num_instances in arguments.instances:
                for waiting in arguments.waiting:
                    core_queue.report(policy, num_instances, waiting, clock)
        return
    results = [
        measure(running, regime, arguments.iterations, clock, policy)
        for policy in arguments.policy
        for running in arguments.running
        for regime in (steady(arguments.iterations), CHURN, TIGHT)
    ]
    if arguments.json:
        print(json.dumps(results))
    else:
        for result in results:
            report(result)


if __name__ == "__main__":
    main()
