"""The Core's cost with roles on: eight instances of which two compute prompts, beside mixed ones.

Three Cores serve the same closed loop: as many requests are alive as were asked for, and whoever
ends is followed by another one. All transfers land as soon as they are ordered.

one     one mixed instance with an eighth of them: its steps are as large as those of the others
mixed   eight mixed instances
roles   two that compute prompts and six that decode

An iteration is one answered step with all that comes of it, StepDone to Submit. What a request
costs besides (arrivals, links, transfers) is in the second figure: all of the Core's time for each
token that was drawn. The sides run in turns in one process; the clock is the thread's CPU time.

    python -m benchmarks.core_roles [--alive 256 1000] [--iterations 4000] [--policy gittins]
"""

import argparse
import gc
import random
import statistics
from collections import deque
from time import thread_time

import numpy as np

from daemon.core.actions import Deliver, Send, Submit
from daemon.core.core import Core
from daemon.core.events import (
    Configured,
    Event,
    InstanceConfig,
    LinkChanged,
    RequestArrived,
    StepDone,
    TransferEnded,
    WorkerReady,
)
from daemon.memory.hashing import chain_hashes
from daemon.scheduler.policies import POLICIES
from daemon.state.role import Role

BLOCK_SIZE, STEP_S, TURN = 16, 0.01, 400
P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
SIDES = {"one": (M,), "mixed": (M,) * 8, "roles": (P, P, D, D, D, D, D, D)}


class Side:
    """One Core, workers that answer at once, and a closed loop of requests."""

    def __init__(self, roles: tuple[Role, ...], alive: int, policy: str) -> None:
        self.roles = roles
        each = -(-alive // 8)
        instances = tuple(InstanceConfig(f"i{n}", role, "cpu") for n, role in enumerate(roles))
        slots = 2 * each
        self._core = Core(
            Configured(
                0.0, instances, policy, BLOCK_SIZE, slots, slots + 512, 512, 8 * alive, 1024, True
            )
        )
        self._chance = random.Random(1)
        self._now = 0.0
        self._steps: deque[Submit] = deque()
        self._sends: deque[Send] = deque()
        self._request = 0
        self._ended = 0
        self.num_tokens, self.core_s = 0, 0.0
        for number in range(len(roles)):
            self._do(WorkerReady(0.0, number, slots * 64, 1, STEP_S, 0, 0.0, 1e-5))
        for source in range(len(roles)):
            for target in range(len(roles)):
                if source != target:
                    self._do(LinkChanged(0.0, target, source, False, True, 1))
                    self._do(LinkChanged(0.0, source, target, True, True, 1))
        for _ in range(each * len(roles)):
            self._arrive()

    def iterate(self) -> float:
        """One step is answered; the seconds that the Core took for that event."""
        batch = self._steps.popleft().batch
        self._now += STEP_S / len(self.roles)
        reasons = np.zeros(np.count_nonzero(batch.samples), np.uint8)
        took_s = self._do(StepDone(self._now, batch.instance, batch.step, reasons, STEP_S))
        while self._sends:
            send = self._sends.popleft()
            for end in (send.target, send.source):
                event = TransferEnded(self._now, end, send.transfer, len(send.blocks), 1e-3)
                self._do(event)
        ended, self._ended = self._ended, 0
        for _ in range(ended):
            self._arrive()
        return took_s

    def _arrive(self) -> None:
        self._request += 1
        chance = self._chance
        tokens = [chance.randrange(30000) for _ in range(chance.randint(50, 250))]
        counts = len(tokens), chance.randint(200, 400)
        hashes = chain_hashes(tokens, BLOCK_SIZE)
        self._do(RequestArrived(self._now, self._request, *counts, hashes=hashes))

    def _do(self, event: Event) -> float:
        start_s = thread_time()
        actions = self._core.handle(event)
        took_s = thread_time() - start_s
        self.core_s += took_s
        for action in actions:
            if isinstance(action, Submit):
                self._steps.append(action)
            elif isinstance(action, Send):
                self._sends.append(action)
            elif isinstance(action, Deliver):
                self.num_tokens += len(action.rows)
                self._ended += int(np.count_nonzero(action.reasons))
        return took_s


def measure(alive: int, iterations: int, policy: str) -> None:
    """Print all sides for one number of requests."""
    sides = {name: Side(roles, alive, policy) for name, roles in SIDES.items()}
    for side in sides.values():
        for _ in range(100 * len(side.roles)):
            side.iterate()
        side.num_tokens, side.core_s = 0, 0.0
    gc.collect()
    gc.freeze()
    medians: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(max(1, iterations // TURN)):
        for name, side in sides.items():
            medians[name].append(statistics.median(side.iterate() for _ in range(TURN)))
    gc.unfreeze()
    one = medians["one"]
    print(f"{policy}, {alive} alive on eight instances, us per iteration and per token:")
    for name, side in sides.items():
        ratios = sorted(mine / of_one for mine, of_one in zip(medians[name], one, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        token_us = 1e6 * side.core_s / max(1, side.num_tokens)
        median_us = 1e6 * statistics.median(medians[name])
        print(f"  {name:6} {median_us:7.1f}  of one: {spread}  a token {token_us:6.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The Core's cost with roles on.")
    parser.add_argument("--alive", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--policy", nargs="+", choices=sorted(POLICIES), default=["gittins"])
    arguments = parser.parse_args()
    for policy in arguments.policy:
        for alive in arguments.alive:
            measure(alive, arguments.iterations, policy)


if __name__ == "__main__":
    main()
