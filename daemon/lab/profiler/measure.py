"""Experiments run on a real worker, round after round, until the time is over.

So a slow moment of the machine affects many experiments a little and none alone.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from daemon.cost.curve import Curve
from daemon.cost.forward_size import forward_size
from daemon.cost.work import NO_WORK, StepWork
from daemon.lab.profiler.experiments import (
    Experiment,
    Kind,
    LoadedLimits,
    experiments,
    longer_prompts,
)
from daemon.lab.profiler.host import CpuTimes, cpu_times
from daemon.lab.profiler.operators import COPIED_BLOCKS, AlonePoint, operator_steps
from daemon.lab.profiler.points import Point
from daemon.lab.profiler.synthetic import PlanMaker, StepRow
from daemon.lab.profiler.worker import MeasuredWorker, PlanTiming
from daemon.lab.profiles.errors import ProfileError
from daemon.memory.layout import row_blocks
from daemon.protocol.worker import Load, Plan

_MOST_SAMPLES = 12  # of one experiment: more would tell nothing new
_COPIED_BLOCKS = 64  # in one plan
_SEEDED_BLOCKS = 8
_WARM_TOKENS = 64  # steps up to here are computed once before they count
_LEAST_SHARE = 0.4  # of the budget, however long the model took to load
_WARM_SHARE = 0.1  # of the budget, at most, for steps that do not count
_LONGER_SHARE = 0.3  # likewise, until the target forward size is known
_STEPS_SHARE = 0.75  # of the budget, when whole steps end and operators alone begin
_LEAST_OPERATOR_STEPS = 6  # measured however long they take: of both kinds, and of several sizes
_OPERATOR_REPEATS = 2  # in a round, of which the fastest counts

Progress = Callable[[float, str], None]
"""Receives the share that is done, and the current work."""


@dataclass(slots=True)
class Measurements:
    """All that was measured on one worker."""

    points: list[Point]
    gap_s: float  # median of the round trip of a plan less the worker's own time
    gap_per_row_s: float  # its growth with the rows of a step
    copy_bytes_per_s: float  # block to block, on the device
    block_bytes: int
    num_blocks: int
    wanted: list[Point]  # without samples: all possible experiments
    alone: list[AlonePoint]  # operators; empty where the worker tells none apart
    used_by_others: float  # share of the cores that other processes used meanwhile
    most_times: int = 1  # as in `Profile`


async def measure(
    load: Load,
    budget_s: float,
    progress: Progress,
    step_tokens: int = 0,
    others: Sequence[Load] = (),
) -> Measurements:
    """Load a worker and measure it for `budget_s` seconds in all. Raises ProfileError.

    `others`: of the further ranks of its instance, where it has several.

    `step_tokens`: longer steps are single prompts, as far as they show the target forward size; 0:
    no step that the worker allows is longer. A model that takes long to load gets a share of the
    time for its measurement all the same.
    """
    progress(0.0, "loading the model")
    began_s = time.monotonic()
    async with MeasuredWorker(load, others) as worker:
        left_s = budget_s - (time.monotonic() - began_s)
        left_s = max(left_s, _LEAST_SHARE * budget_s)
        return await _Session(worker, load, step_tokens, left_s, progress).run()


class _Session:
    """One worker and the remaining time."""

    def __init__(
        self,
        worker: MeasuredWorker,
        load: Load,
        step_tokens: int,
        budget_s: float,
        progress: Progress,
    ) -> None:
        self._worker = worker
        cells, windows = row_blocks(load.max_len, load.block_size), worker.ready.windows
        self._maker = PlanMaker(load.block_size, load.max_slots, windows, cells)
        self._num_blocks = worker.ready.num_blocks
        self._cpus = load.cpus or tuple(os.sched_getaffinity(0))
        self._limits = LoadedLimits(
            step_tokens or load.max_batch_tokens,
            load.max_slots,
            load.max_len,
            self._num_blocks // max(1, len(windows)),
            load.block_size,
        )
        self._wanted = experiments(self._limits)
        room = self._limits.num_blocks * load.block_size
        self._longer = longer_prompts(min(load.max_batch_tokens, load.max_len, room))
        self._told = progress
        self._began_s = time.monotonic()
        self._budget_s = budget_s
        self._step = 0
        self._samples: dict[Experiment, list[PlanTiming]] = {}

    async def run(self) -> Measurements:
        """Run all parts in order."""
        await self._worker.run(self._maker.opening())
        copy_bytes_per_s = await self._touch()
        await self._warm_up()
        await self._find_size()
        before = self._cpu_times()
        while await self._round():
            pass
        alone = await self._operators()
        used_by_others = self._cpu_times().used_by_others(before, len(self._cpus))
        return self._measurements(copy_bytes_per_s, alone, used_by_others)

    def _cpu_times(self) -> CpuTimes:
        return cpu_times(self._cpus, (os.getpid(), self._worker.pid))

    @property
    def _share(self) -> float:
        return (time.monotonic() - self._began_s) / self._budget_s

    async def _touch(self) -> float:
        """Write every block that an experiment reads: pages never written are all one zero page.

        Returns the bytes per second of the copies, once more over pages that are there.
        """
        self._told(0.0, "writing KV blocks")
        most = max(
            (self._maker.num_blocks(experiment.rows) for experiment in self._wanted), default=0
        )
        num_groups = self._maker.num_groups
        seeded = min(_SEEDED_BLOCKS, most) // num_groups * num_groups
        num_tokens = seeded // num_groups * self._maker.block_size
        filling = StepRow(min(num_tokens, self._longest()), 0)
        await self._compute((filling,))
        for first in range(seeded, most, _COPIED_BLOCKS):
            await self._copy(first, min(first + _COPIED_BLOCKS, most), seeded)
        count = min(_COPIED_BLOCKS, most - seeded)
        if count <= 0:
            return 0.0
        times = [await self._copy(seeded, seeded + count, seeded) for _ in range(5)]
        return count * self._worker.ready.block_bytes / min(times)

    def _longest(self) -> int:
        return max(experiment.num_tokens for experiment in self._wanted)

    async def _copy(self, first: int, last: int, seeded: int) -> float:
        targets = np.arange(first, last, dtype=np.int32)
        self._step += 1
        plan = self._maker.copies(self._step, (targets % seeded).astype(np.int32), targets)
        return (await self._worker.run(plan)).elapsed_s

    async def _warm_up(self) -> None:
        """Compute the first step of each shape, which also prepares for it, where that is cheap."""
        for experiment in self._wanted:
            if self._share > _WARM_SHARE:
                return
            if experiment.num_tokens <= _WARM_TOKENS:
                await self._compute(experiment.rows)

    async def _find_size(self) -> None:
        """Measure longer prompts until throughput has levelled off, so that no steps are measured
        beyond the useful size; these then count as experiments too.
        """
        times: dict[int, float] = {}
        for longer in self._longer:
            if self._share > _LONGER_SHARE:
                return
            self._told(self._share, f"{longer.kind}: {_shown(longer)}")
            await self._compute(longer.rows)  # the first step of a shape also prepares for it
            times[longer.num_tokens] = (await self._measure(longer)).elapsed_s
            if longer not in self._wanted:
                self._wanted.append(longer)
            curve = Curve(tuple(times), tuple(times.values()))
            if forward_size(curve, longer.num_tokens, min(times)).levelled:
                return

    async def _measure(self, experiment: Experiment) -> PlanTiming:
        timing = await self._compute(experiment.rows)
        self._samples.setdefault(experiment, []).append(timing)
        return timing

    async def _round(self) -> bool:
        """Measure each experiment once; False when the time is over or all are known
        well enough.
        """
        open_ones = [
            experiment
            for experiment in self._wanted
            if len(self._samples.get(experiment, ())) < _MOST_SAMPLES
        ]
        for experiment in open_ones:
            if self._share >= _STEPS_SHARE:
                return False
            self._told(self._share, f"{experiment.kind}: {_shown(experiment)}")
            await self._measure(experiment)
        return bool(open_ones)

    async def _operators(self) -> list[AlonePoint]:
        """Measure the operators of each step alone, in rounds until the time is over; nothing where
        the model is one whole.
        """
        found: list[AlonePoint] = []
        while not found or self._share < 1.0:
            for number, rows in enumerate(operator_steps(self._limits)):
                if self._share >= 1.0 and number >= _LEAST_OPERATOR_STEPS:
                    return found
                self._told(self._share, f"operators: {_shown(Experiment(Kind.TOKENS, rows))}")
                self._step += 2
                await self._worker.run(self._maker.tables(self._step - 1, rows))
                plan = self._maker.step(self._step, rows)
                found += await self._alone(plan, self._maker.work(rows), 0)
                if not found:
                    return found
            for count in COPIED_BLOCKS:
                if 2 * count <= self._num_blocks:
                    self._step += 1
                    sources = np.arange(count, dtype=np.int32)
                    copies = self._maker.copies(self._step, sources, sources + np.int32(count))
                    found += await self._alone(copies, NO_WORK, count)
        return found

    async def _alone(self, plan: Plan, work: StepWork, num_copied: int) -> list[AlonePoint]:
        answer = await self._worker.operators(plan, _OPERATOR_REPEATS)
        return [AlonePoint(name, work, num_copied, time_s) for name, time_s in answer.times_s]

    async def _compute(self, rows: tuple[StepRow, ...]) -> PlanTiming:
        self._step += 2
        await self._worker.run(self._maker.tables(self._step - 1, rows))
        return await self._worker.run(self._maker.step(self._step, rows))

    def _measurements(
        self, copy_bytes_per_s: float, alone: list[AlonePoint], used_by_others: float
    ) -> Measurements:
        if not self._samples:
            raise ProfileError(f"nothing was measured in {self._budget_s:g} s: allow more time")
        points = [
            Point(
                experiment.kind,
                self._maker.work(experiment.rows),
                tuple(t.elapsed_s for t in timings),
            )
            for experiment, timings in self._samples.items()
        ]
        gaps = [
            (len(experiment.rows), timing.round_trip_s - timing.elapsed_s)
            for experiment, timings in self._samples.items()
            for timing in timings
        ]
        return Measurements(
            points=points,
            gap_s=median(gap for _, gap in gaps),
            gap_per_row_s=_slope(gaps),
            copy_bytes_per_s=copy_bytes_per_s,
            block_bytes=self._worker.ready.block_bytes,
            num_blocks=self._num_blocks,
            wanted=[
                Point(experiment.kind, self._maker.work(experiment.rows), ())
                for experiment in self._wanted
            ],
            alone=alone,
            used_by_others=used_by_others,
            most_times=self._worker.ready.most_times,
        )


def _slope(gaps: list[tuple[int, float]]) -> float:
    """Additional seconds per row: the medians of steps with few and with many rows, compared."""
    middle = median(rows for rows, _ in gaps)
    few = [pair for pair in gaps if pair[0] <= middle]
    many = [pair for pair in gaps if pair[0] > middle]
    if not many:
        return 0.0
    rise = median(gap for _, gap in many) - median(gap for _, gap in few)
    return max(0.0, rise / (median(rows for rows, _ in many) - median(rows for rows, _ in few)))


def _shown(experiment: Experiment) -> str:
    return f"{len(experiment.rows)} rows, {experiment.num_tokens} tokens"
