"""An engine whose steps go wrong on purpose: the worker's sites of `daemon.wire.faults`."""

import logging
import os
import time
from dataclasses import replace

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.streams import StreamError
from daemon.engine.kv.pool import PagedKV
from daemon.engine.model.backend import Backend
from daemon.engine.model.model import CausalModel
from daemon.engine.step.step import Begun, Engine
from daemon.protocol.worker import Plan, Reply
from daemon.wire.faults import Faults

log = logging.getLogger(__name__)


class FaultyEngine:
    """Steps that crash, hang, take long, or miss a swap copy; as an `Engine` to a worker."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        log.warning("faults are injected: %s", ", ".join(faults))
        model = _FaultyModel(engine.model, faults)
        self._engine = replace(engine, model=model)
        self._faults = faults

    def begin(self, plan: Plan, came_s: float | None = None) -> "_FaultyBegun":
        """Begin a plan, unless something strikes."""
        poison = self._faults.get("worker.poison")
        if poison is not None and poison.seed in plan.inputs.tolist() and poison.strikes():
            os.abort()
        if self._faults.strikes("worker.crash_before"):
            os.abort()
        if self._faults.strikes("worker.hang") or self._is_absent():
            while True:
                pass
        if len(plan.batch.out_blocks) and self._faults.strikes("worker.copy"):
            raise StreamError("a swap copy failed: injected")
        came_s = time.perf_counter() if came_s is None else came_s
        if self._faults.strikes("worker.slow"):
            time.sleep(plan.batch.times * self._faults["worker.slow"].seed / 1e3)
        return _FaultyBegun(self._engine.begin(plan, came_s), self._faults)

    def _is_absent(self) -> bool:
        """Whether this is the rank that is to miss this step."""
        ranks, fault = self._engine.backend.ranks, self._faults.get("worker.absent")
        return (
            ranks is not None
            and fault is not None
            and ranks.rank == fault.seed
            and (fault.strikes())
        )


class _FaultyBegun:
    """A step whose answer may never come."""

    def __init__(self, begun: Begun, faults: Faults) -> None:
        self._begun = begun
        self._faults = faults

    def finish(self) -> Reply:
        """As the step's own."""
        reply = self._begun.finish()
        if self._faults.strikes("worker.crash_after"):
            os.abort()
        return reply


class _FaultyModel(CausalModel):
    """A forward pass that finds no memory, or ends in what is not a number."""

    def __init__(self, model: CausalModel, faults: Faults) -> None:
        self._whole = model
        self._faults = faults
        self.experts = model.experts

    def alike(self, count: int, other: int) -> bool:
        """As the model's own."""
        return self._whole.alike(count, other)

    def compiles(self, batch: FlatBatch) -> bool:
        """No: each time of a step is one of its own, that faults may strike."""
        return False

    def logits(
        self, batch: FlatBatch, slots: Slots, cache: PagedKV, backend: Backend
    ) -> torch.Tensor:
        """As the model's own."""
        if self._faults.strikes("worker.oom"):
            raise torch.OutOfMemoryError("out of memory: injected")
        logits = self._whole.logits(batch, slots, cache, backend)
        if len(logits) and self._faults.strikes("worker.nan"):
            logits = logits.clone()
            logits[0] = torch.nan
        return logits
