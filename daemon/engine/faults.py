"""An engine whose steps go wrong on purpose: the worker's sites of `daemon.wire.faults`."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import torch

from daemon.engine.backend import Backend
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.model import Model
from daemon.engine.protocol import Plan, Reply
from daemon.engine.step import Engine
from daemon.engine.streams import StreamError
from daemon.wire.faults import Fault

log = logging.getLogger(__name__)

Run = Callable[[Plan, float], Reply]


def faulty(engine: Engine, faults: Mapping[str, Fault]) -> Run:
    """What computes this engine's plans while these faults strike."""
    log.warning("faults are injected: %s", ", ".join(faults))
    model = _FaultyModel(engine.model, faults.get("worker.oom"), faults.get("worker.nan"))
    return _FaultyEngine(replace(engine, model=model), faults).run


class _FaultyEngine:
    """Steps that crash, hang, take long, or miss a swap copy."""

    def __init__(self, engine: Engine, faults: Mapping[str, Fault]) -> None:
        self._engine = engine
        self._faults = faults

    def run(self, plan: Plan, idle_s: float) -> Reply:
        """Compute a plan, unless something strikes."""
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
        began = time.perf_counter()
        if self._strikes("worker.slow"):
            time.sleep(self._faults["worker.slow"].seed / 1e3)
        slept_s = time.perf_counter() - began
        reply = self._engine.run(plan, idle_s)
        if self._strikes("worker.crash_after"):
            os.abort()
        return _later(reply, slept_s)

    def _strikes(self, site: str) -> bool:
        fault = self._faults.get(site)
        return fault is not None and fault.strikes()


class _FaultyModel(Model):
    """A forward pass that finds no memory, or ends in what is not a number."""

    def __init__(self, model: Model, oom: Fault | None, nan: Fault | None) -> None:
        self._whole = model
        self._oom, self._nan = oom, nan

    def logits(self, batch: FlatBatch, cache: KVCache, backend: Backend) -> torch.Tensor:
        """As the model's own."""
        if self._oom is not None and self._oom.strikes():
            raise torch.OutOfMemoryError("out of memory: injected")
        logits = self._whole.logits(batch, cache, backend)
        if self._nan is not None and len(logits) and self._nan.strikes():
            logits = logits.clone()
            logits[0] = torch.nan
        return logits


def _later(reply: Reply, slept_s: float) -> Reply:
    """The same answer after a longer step: frozen, so a copy."""
    return msgspec.structs.replace(reply, elapsed_s=reply.elapsed_s + slept_s)
