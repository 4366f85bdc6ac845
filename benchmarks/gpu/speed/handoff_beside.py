"""What handoff costs the decode steps that the sender's GPU computes beside it."""

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.handoff_peer import Ended, Join, Leave, Peer, PoolSizes
from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.engines import BLOCK_SIZE, Sizes, config_of, engine_of
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.plans import GREEDY, Plans
from benchmarks.gpu.speed.steady import EXTRA, steady
from daemon.engine.step.step import Engine
from daemon.engine.transfer.messages import Done
from daemon.wire.columns import Int32


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that decode, and the prompts that are handed off meanwhile."""

    batch: int
    context: int
    steps: int
    rounds: int
    prompt_blocks: int
    prompts_per_s: float
    max_len: int

    @property
    def plans(self) -> int:
        """Steps of one run."""
        return self.steps + EXTRA


FULL = Case(32, 1024, 96, 3, 128, 18.0, 8192)
"""18 prompts of 2,048 tokens a second: what one such GPU prefills at its best."""
TINY = Case(2, 20, 4, 1, 2, 100.0, 64)


class Prompts:
    """A thread that hands prompts off: `per_s` of them a second, or two at any time."""

    def __init__(self, here: Ended, first_block: int, count: int, per_s: float | None) -> None:
        """`count` blocks each, of twice as many from `first_block` on."""
        self._here, self._every_s = here, 1 / per_s if per_s else 0.0
        chance = np.random.default_rng(0)
        blocks = first_block + chance.permutation(2 * count).astype(np.int32)
        self._columns = [(half, _half(n, count)) for n, half in enumerate(np.split(blocks, 2))]
        self._fills = np.full(count, here.cache.block_size, np.int32)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.num_sent, self.elapsed_s = 0, 0.0
        self._thread.start()

    def stop(self) -> None:
        """End, once what was begun has arrived. Raises RuntimeError where it did not."""
        self._ending.set()
        self._thread.join()
        if not self.num_sent:
            raise RuntimeError("a handoff broke")

    def _send(self) -> None:
        began_s = time.perf_counter()
        num_open, num_sent = 0, 0
        for transfer in itertools.count():
            ending = self._ending.wait(self._every_s if num_sent else 0.0)
            while num_open and (num_open == 2 or ending):
                if not isinstance(self._here.next(), Done):
                    return
                num_open -= 1
                num_sent += 1
            if ending:
                break
            self._here.sender.send(transfer, *self._columns[transfer % 2], self._fills)
            num_open += 1
        self.elapsed_s = time.perf_counter() - began_s
        self.num_sent = num_sent


def _half(number: int, count: int) -> Int32:
    return np.arange(number * count, (number + 1) * count, dtype=np.int32)


@torch.inference_mode()
def handoff_beside_figures(job: Job) -> Iterator[Figure]:
    """The slowdown of decode steps, at the rate of a GPU that prefills and at the link's own."""
    case, config = TINY if job.tiny else FULL, config_of(job.tiny)
    capacity = case.context + case.plans
    used, room = case.batch * -(-capacity // BLOCK_SIZE), 2 * case.prompt_blocks
    engine = engine_of(config, job.device, Sizes(case.batch, case.max_len, used + room, 512))
    pool = PoolSizes.like(engine.cache, room)
    with Peer() as peer:
        for direct in (False, True) if job.device.startswith("cuda") else (False,):
            ours, theirs = Join(pool, sends=True, direct=direct), Join(pool, sends=False)
            here = peer.join(theirs, ours, engine.cache)
            rates = (case.prompts_per_s,) if direct else (case.prompts_per_s, None)
            for per_s in rates:
                yield _figure(engine, case, here, used, per_s)
            here.end.close()
            peer.ask(Leave())


def _figure(engine: Engine, case: Case, here: Ended, used: int, per_s: float | None) -> Figure:
    """Both in turns, so that a slow moment meets both."""
    alone_s, beside_s, bytes_per_s = [], [], []
    for _ in range(case.rounds):
        alone_s.append(_step_s(engine, case))
        prompts = Prompts(here, used, case.prompt_blocks, per_s)
        beside_s.append(_step_s(engine, case))
        prompts.stop()
        moved = prompts.num_sent * case.prompt_blocks * here.cache.block_bytes
        bytes_per_s.append(moved / prompts.elapsed_s)
    slower = statistics.median(beside_s) / statistics.median(alone_s) - 1
    way = "CUDA IPC" if here.sender.direct else "host memory"
    pace = "a prefilling GPU's rate" if per_s else "full rate"
    return Figure(
        f"decode batch {case.batch} beside handoff, {way}, {pace}, slower by",
        100 * slower,
        "%",
        note=f"goal 1; {statistics.median(bytes_per_s) / 1e9:.1f} GB/s",
        raw={"step_s": beside_s, "alone_s": alone_s, "bytes_per_s": bytes_per_s},
    )


def _step_s(engine: Engine, case: Case) -> float:
    plans = Plans(case.batch, case.context + case.plans, BLOCK_SIZE, GREEDY, case.context)
    times = steady(engine, [plans.decode(case.context + n) for n in range(case.plans)])
    engine.run(plans.leave())
    return times.step_s
