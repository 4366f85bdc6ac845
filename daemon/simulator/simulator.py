"""The event loop of a simulation: the same Core, virtual seconds, simulated workers."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from daemon.core.actions import Deliver, Finished, Rejected, Started, Submit, WakeAt
from daemon.core.core import Core
from daemon.core.events import (
    Configured,
    Event,
    Predicted,
    RequestArrived,
    StepDone,
    Tick,
    WorkerLost,
    WorkerReady,
)
from daemon.core.instance import Instance
from daemon.journal.writer import JournalWriter
from daemon.predict.lengths import LengthPredictor
from daemon.report.records import Outcome, RunLog
from daemon.request import FinishReason, sequence_id
from daemon.simulator.agenda import Agenda, Rank
from daemon.simulator.recorder import Recorder
from daemon.simulator.scenario import WorkerFault
from daemon.simulator.traffic import Traffic
from daemon.simulator.worker import SimulatedWorker

PROGRESS_EVENTS = 2048


class SimulationError(RuntimeError):
    """The run came to a stop with sequences left, which no event would move."""


class Simulator:
    """Drives one Core over one workload until nothing is left to happen.

    `workers` has one for each configured instance; `reload_s(instance, now)` says when a worker that
    died at `now` is back.
    """

    def __init__(
        self,
        config: Configured,
        traffic: Traffic,
        workers: list[SimulatedWorker],
        pools: list[tuple[int, int]],  # (blocks, bytes of a block) of each instance
        recorder: Recorder,
        predictor: LengthPredictor | None = None,
        chance: np.random.Generator | None = None,
        journal: JournalWriter | None = None,
    ) -> None:
        self.core = Core(config)
        self.agenda = Agenda()
        self.reload_s: Callable[[WorkerFault], float] = lambda fault: fault.at_s + fault.restart_s
        self.after_event: Callable[[Core], None] | None = None
        self._traffic = traffic
        self._workers = workers
        self._pools = pools
        self._recorder = recorder
        self._predictor = predictor
        self._chance = chance or np.random.default_rng(0)
        self._journal = journal
        self._lives = [0] * len(workers)  # answers of an earlier life are dropped
        self._wake_s = float("inf")
        self._carry_out: dict[type, Callable[[float, Any], None]] = {
            Submit: self._submit,
            Deliver: self._deliver,
            Started: self._started,
            Finished: self._finished,
            Rejected: self._rejected,
            WakeAt: self._wake_at,
        }

    def run(self, faults: tuple[WorkerFault, ...] = (), progress: Progress | None = None) -> RunLog:
        """From the first arrival to the last event. Raises SimulationError if it gets stuck."""
        began_s = time.perf_counter()
        for instance in range(len(self._workers)):
            self._ready(0.0, instance)
        for fault in faults:
            self.agenda.add(fault.at_s, Rank.LOSS, fault)
        if len(self._traffic):
            self.agenda.add(self._traffic.core_s(0), Rank.ARRIVAL, 0)
        last_s = self._loop(progress)
        if self.core.sequences:
            left = len(self.core.sequences)
            raise SimulationError(f"{left} sequences are left at {last_s:.3f} s, and nothing moves")
        wall_s = time.perf_counter() - began_s
        first_s = self._traffic.first_s
        recorder = self._recorder
        for log, worker in zip(recorder.instances, self._workers, strict=True):
            log.energy_j = worker.energy_j(last_s - first_s)
        spans = recorder.spans or []
        return RunLog(recorder.finish(), recorder.instances, spans, last_s - first_s, wall_s)
