"""The Core's cost per iteration, in isolation, beside a plain loop over sequence objects.

An iteration is one answered step with all that comes of it, StepDone to Submit: tokens counted,
sequences ended, their places taken by waiting ones (a sixth of them with a cached prefix), blocks
found, and the next step's columns built. Depth 1, steady decode: answers of 200 to 400 tokens, so
that some end in every few steps. Arrivals and sealed blocks (hashes of generated tokens) are
events of their own, timed apart: they come while the worker computes. The pool is full, so that
blocks are taken from the prefix cache.
Garbage collection: gc.freeze() after the warm-up, as the daemon does after its start; the
collector stays on. Both sides run in turns in one process. The clock is the thread's CPU time, so
that neighbours' time slices do not count; `--clock wall` counts them.

    python -m benchmarks.core [--running 256 1000] [--iterations 2000] [--clock wall] [--json]
"""

import argparse
import gc
import itertools
import json
import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.object_loop import ObjectLoop
from daemon.batch import Batch
from daemon.core.actions import Action, Deliver, Submit
from daemon.core.core import Core
from daemon.core.events import (
    Configured,
    Event,
    InstanceConfig,
    RequestArrived,
    Sealed,
    StepDone,
    WorkerReady,
)
from daemon.memory.hashing import chain_hashes

BLOCK_SIZE = 16
BLOCKS_EACH = 40  # of the pool, for each sequence that runs; 640 tokens
SPARE = 8  # sequences that wait, so that a place never stays vacant
TURN = 100
WARM_UP = 600
READY_MADE = 12_000
STEP_S = 0.01
Clock = Callable[[], float]
GOALS_US = {256: (60.0, 250.0), 1000: (150.0, 500.0)}


class Traffic:
    """Arrivals, the same for both sides."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._shared = [self._tokens(160) for _ in range(8)]
        self._request = 0

    def arrival(self, now: float, shortest: int = 200) -> RequestArrived:
        """A prompt of 50 to 250 tokens; every sixth begins like others did."""
        chance = self._chance
        tokens = self._tokens(chance.randint(50, 250))
        if chance.random() < 1 / 6:
            tokens = chance.choice(self._shared) + tokens[:80]
        self._request += 1
        max_tokens = chance.randint(shortest, 400)
        hashes = chain_hashes(tokens, BLOCK_SIZE)
        return RequestArrived(now, self._request, len(tokens), max_tokens, hashes=hashes)

    def crowd(self, count: int) -> Iterator[RequestArrived]:
        """Those of the beginning; their answers are of any length, so that ages differ."""
        return (self.arrival(0.0, shortest=1) for _ in range(count))

    def ready_made(self) -> Iterator[RequestArrived]:
        """Arrivals without end, tokenized and hashed before the clock runs, as another process
        does it; request numbers go on from the crowd's.
        """
        made = [self.arrival(0.0) for _ in range(READY_MADE)]
        for number in itertools.count():
            yield replace(made[number % READY_MADE], request=100_000 + number)

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(30000) for _ in range(count)]


class CoreSide:
    """One Core with a worker that answers at once."""

    def __init__(self, running: int, seed: int, clock: Clock) -> None:
        self._clock = clock
        config = Configured(
            now=0.0,
            instances=(InstanceConfig("a", "mixed", "cpu"),),
            policy="sarathi",
            block_size=BLOCK_SIZE,
            max_running=running,
            max_batch_tokens=running + 512,
            prefill_chunk=512,
            max_waiting=4 * running,
            max_len=1024,
            prefix_cache=True,
            depth=1,
        )
        self._traffic = Traffic(seed).ready_made()
        self._core = Core(config)
        self._now = 0.0
        self._ended = 0
        self._batch: Batch | None = None
        self.arrivals_s: list[float] = []  # what each arrival cost
        self.calm = False  # whether nobody ended or joined in the newest iteration
        self._core.handle(WorkerReady(0.0, 0, running * BLOCKS_EACH, 1, STEP_S))
        for first in Traffic(seed).crowd(running + SPARE):
            self._take(self._core.handle(first))

    def iterate(self) -> float:
        """One iteration; the seconds that the Core took."""
        assert self._batch is not None
        self._now += STEP_S
        reasons = np.zeros(np.count_nonzero(self._batch.samples), np.uint8)
        for arrival in itertools.islice(self._traffic, self._ended):
            self.arrivals_s.append(self._timed(replace(arrival, now=self._now)))
        self._ended = 0
        elapsed_s = self._timed(StepDone(self._now, 0, self._batch.step, reasons, STEP_S))
        self.calm = not (self._ended or self._batch.joined_slots.size)
        return elapsed_s

    def seal(self) -> float:
        """A generated block's hash for one running sequence; the seconds that the Core took."""
        sequence = next(iter(self._core.sequences.values()))
        digest = blake2b(str(self._now).encode(), digest_size=16).digest()
        return self._timed(Sealed(self._now, sequence.id, len(sequence.hashes), digest))

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

    def __init__(self, running: int, seed: int, clock: Clock) -> None:
        self._clock = clock
        self._traffic = Traffic(seed).ready_made()
        self._loop = ObjectLoop(running * BLOCKS_EACH, BLOCK_SIZE, running, running + 512)
        self._now = 0.0
        self._ended = 0
        for first in Traffic(seed).crowd(running + SPARE):
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
    """Median and p99 in microseconds."""
    median, p99 = np.percentile(np.array(times_s) * 1e6, [50, 99])
    return {"median_us": round(float(median), 1), "p99_us": round(float(p99), 1)}


def measure(running: int, iterations: int, clock: Clock) -> dict[str, Any]:
    """Both sides in turns, after a warm-up in which every sequence gets an age of its own."""
    core, loop = CoreSide(running, 1, clock), LoopSide(running, 1, clock)
    for _ in range(WARM_UP):
        core.iterate()
        loop.iterate()
    gc.collect()
    gc.freeze()
    times_s: dict[str, list[float]] = {"core": [], "loop": []}
    quietest_s = dict.fromkeys(times_s, float("inf"))
    for _ in range(max(1, iterations // TURN)):
        for side, iterate in (("core", core.iterate), ("loop", loop.iterate)):
            turn_s = [iterate() for _ in range(TURN)]
            times_s[side] += turn_s
            quietest_s[side] = min(quietest_s[side], float(np.median(turn_s)))
    calm_s = [one for one in (core.iterate() for _ in range(TURN * 10)) if core.calm]
    sealed = quantiles([core.seal() for _ in range(1000)])
    gc.unfreeze()
    result: dict[str, Any] = {
        side: {**quantiles(times), "quietest_us": round(quietest_s[side] * 1e6, 1)}
        for side, times in times_s.items()
    }
    calm_us = round(float(np.median(calm_s)) * 1e6, 1) if calm_s else None
    ratio = {key: round(result["loop"][key] / result["core"][key], 2) for key in result["core"]}
    return {
        "running": running,
        **result,
        "loop_over_core": ratio,
        "calm_us": calm_us,
        "arrival_event": quantiles(core.arrivals_s),
        "sealed_event": sealed,
    }


def report(result: dict[str, Any]) -> None:
    """Print one size as a person reads it."""
    running = result["running"]
    print(f"{running} running sequences, us per iteration:")
    for side in ("core", "loop"):
        times = result[side]
        quietest = f"median of the quietest {TURN}: {times['quietest_us']:.1f}"
        print(f"  {side} median {times['median_us']:7.1f}  p99 {times['p99_us']:7.1f}  {quietest}")
    ratio = result["loop_over_core"]
    print(f"  loop / core {ratio['median_us']:5.2f}      {ratio['p99_us']:7.2f}")
    print(f"  core where nobody ended or joined: median {result['calm_us']}")
    arrival, sealed = result["arrival_event"], result["sealed_event"]
    print(f"  core, an arrival: median {arrival['median_us']}, p99 {arrival['p99_us']}")
    print(f"  core, a sealed block: median {sealed['median_us']}, p99 {sealed['p99_us']}")
    if running in GOALS_US:
        median, p99 = GOALS_US[running]
        met = result["core"]["median_us"] <= median and result["core"]["p99_us"] <= p99
        print(f"  goal: median <= {median:.0f}, p99 <= {p99:.0f}: {'met' if met else 'MISSED'}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The Core's cost per iteration.")
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    arguments = parser.parse_args()
    clock = thread_time if arguments.clock == "cpu" else perf_counter
    results = [measure(running, arguments.iterations, clock) for running in arguments.running]
    if arguments.json:
        print(json.dumps(results))
    else:
        for result in results:
            report(result)


if __name__ == "__main__":
    main()
