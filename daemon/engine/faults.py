"""An engine whose steps go wrong on purpose: the worker's sites of `daemon.wire.faults`."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.model import Model
from daemon.engine.slots import Slots
from daemon.engine.step import Begun, Engine
from daemon.engine.streams import StreamError
from daemon.protocol.worker import Plan, Reply
from daemon.wire.faults import Fault

log = logging.getLogger(__name__)


class FaultyEngine:
    """Steps that crash, hang, take long, or miss a swap copy; as an `Engine` to a worker."""

    def __init__(self, engine: Engine, faults: Mapping[str, Fault]) -> None:
        log.warning("faults are injected: %s", ", ".join(faults))
        model = _FaultyModel(engine.model, faults.get("worker.oom"), faults.get("worker.nan"))
        self._engine = replace(engine, model=model)
        self._faults = faults

    def run(self, plan: Plan, came_s: float | None = None) -> Reply:
        """Apply a plan and answer it, unless something strikes."""
        return self.begin(plan, came_s).finish()

    def begin(self, plan: Plan, came_s: float | None = None) -> "_FaultyBegun":
        """Begin a plan, unless something strikes."""
        poison = self._faults.get("worker.poison")
        if poison is not None and poison.seed in plan.inputs.tolist() and poison.strikes():
            os.abort()
        if self._strikes("worker.crash_before"):
            os.abort()
        if self._strikes("worker.hang"):
            while True:
                pass
        if len(plan.batch.out_blocks) and self._strikes("worker.copy"):
            raise StreamError("a swap copy failed: injected")
        came_s = time.perf_counter() if came_s is None else came_s
        if self._strikes("worker.slow"):
            time.sleep(self._faults["worker.slow"].seed / 1e3)
        return _FaultyBegun(self._engine.begin(plan, came_s), self._strikes)

    def _strikes(self, site: str) -> bool:
        fault = self._faults.get(site)
        return fault is not None and fault.strikes()


class _FaultyBegun:
    """A step whose answer may never come."""

    def __init__(self, begun: Begun, strikes: Callable[[str], bool]) -> None:
        self._begun = begun
        self._strikes = strikes

    def finish(self) -> Reply:
        """As the step's own."""
        reply = self._begun.finish()
        if self._strikes("worker.crash_after"):
            os.abort()
        return reply


class _FaultyModel(Model):
    """A forward pass that finds no memory, or ends in what is not a number."""

    def __init__(self, model: Model, oom: Fault | None, nan: Fault | None) -> None:
        self._whole = model
        self._oom, self._nan = oom, nan

    def logits(
        self, batch: FlatBatch, slots: Slots, cache: KVCache, backend: Backend
    ) -> torch.Tensor:
        """As the model's own."""
        if self._oom is not None and self._oom.strikes():
            raise torch.OutOfMemoryError("out of memory: injected")
        logits = self._whole.logits(batch, slots, cache, backend)
        if self._nan is not None and len(logits) and self._nan.strikes():
            logits = logits.clone()
            logits[0] = torch.nan
        return logits
