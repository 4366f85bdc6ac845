"""The Core and the engine in one process, without HTTP, sockets or a second process between.

This is the engine's own rate for a load: what the daemon gives less is what the rest of it costs.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.speed.requests import Request
from daemon.config.schema import Config
from daemon.core.core import Core
from daemon.core.values.actions import Deliver, Finished, Rejected, Submit, WakeAt
from daemon.core.values.events import CopiesDone, Event, RequestArrived, StepDone, Tick, WorkerReady
from daemon.engine.step.step import Engine
from daemon.engine.worker.answers import AnswersBeside
from daemon.engine.worker.start import start
from daemon.engine.worker.warm_up import measure_copy
from daemon.memory.hashing import chain_hashes
from daemon.protocol.api import Generate
from daemon.protocol.worker import Copied, Reply
from daemon.runtime.model import ServedModel
from daemon.runtime.plans import Planner
from daemon.runtime.token_store import TokenStore
from daemon.state.request import SamplingParams

POLL_S = 0.5
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a loop."""

    tokens: int
    seconds: float
    steps: int
    idle_s: float  # for which the engine had no plan
    cut: bool  # time was up before all were done

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


class CoreAlone:
    """One Core that drives one engine, as the runtime and the worker do together."""

    @torch.inference_mode()
    def __init__(self, model: ServedModel, config: Config) -> None:
        self._engine, times = start(model.load(config, 0), lambda _stage, _done: None)
        while self._engine.prepare():
            pass
        self._block_size = config.memory.block_size
        self._core = Core(model.configured(config, time.monotonic()))
        self._store = TokenStore(self._block_size)
        self._planner = Planner(self._store)
        # Steps are waited for on a thread, as in a worker, so that the Core can plan meanwhile.
        self._said: SimpleQueue[Reply | Copied | Exception] = SimpleQueue()
        self._answers = AnswersBeside(self._said.put, self._said.put)
        self._reply: Reply | None = None
        self._wake_s = float("inf")
        self._ended = self._tokens = self._steps = 0
        self._idle_s = 0.0
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Submit: self._submit,
            Deliver: self._deliver,
            Finished: self._finished,
            Rejected: self._rejected,
            WakeAt: self._wake_at,
        }
        self._handle(self._ready(self._engine, times.step_s, times.token_s))

    @torch.inference_mode()
    def closed_loop(self, requests: Sequence[Request], streams: int, cut_s: float) -> Done:
        """Compute all requests, `streams` of them at a time; after `cut_s` seconds stop."""
        arrivals = [self._arrival(number, one) for number, one in enumerate(requests)]
        waiting = deque(arrivals)
        began_s = time.monotonic()
        for _ in range(min(streams, len(waiting))):
            self._arrive(waiting.popleft())
        while self._ended < len(requests) and time.monotonic() - began_s < cut_s:
            ended = self._ended
            self._turn()
            for _ in range(min(self._ended - ended, len(waiting))):
                self._arrive(waiting.popleft())
        seconds = time.monotonic() - began_s
        cut = self._ended < len(requests)
        return Done(self._tokens, seconds, self._steps, self._idle_s, cut)

    def _turn(self) -> None:
        """The next thing that happens: the engine said something, or a time has come."""
        wait_s = min(POLL_S, max(0.0, self._wake_s - time.monotonic()))
        try:
            said = self._said.get(timeout=wait_s)
        except Empty:
            if time.monotonic() >= self._wake_s:
                self._wake_s = float("inf")
                self._handle(Tick(time.monotonic()))
            return
        now = time.monotonic()
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Reply):
            self._reply = said
            if self._steps:  # before the first one nobody had asked for anything
                self._idle_s += said.idle_s
            self._steps += 1
            self._handle(StepDone(now, 0, said.step, said.reasons, said.elapsed_s))
        else:
            counts = said.num_out, said.out_s, said.num_in, said.in_s
            self._handle(CopiesDone(now, 0, said.step, *counts))

    def _handle(self, event: Event) -> None:
        for action in self._core.handle(event):
            carry_out = self._carry_out.get(type(action))
            if carry_out is not None:
                carry_out(action)

    def _submit(self, action: Submit) -> None:
        plan = self._planner.plan(action.batch)
        self._answers.take(self._engine.begin(plan, time.perf_counter()))

    def _deliver(self, action: Deliver) -> None:
        assert self._reply is not None
        self._store.append(action.sequences, self._reply.tokens[action.rows])
        self._tokens += len(action.rows)
        for sequence in action.sequences[np.flatnonzero(action.reasons)].tolist():
            self._store.drop(sequence)
            self._ended += 1

    def _finished(self, action: Finished) -> None:
        raise RuntimeError(f"a sequence ended without an answer: {action.error}")

    def _rejected(self, action: Rejected) -> None:
        raise RuntimeError(f"a request was rejected: {action.message}")

    def _wake_at(self, action: WakeAt) -> None:
        self._wake_s = action.time_s

    def _arrival(self, number: int, request: Request) -> tuple[Generate, bytes]:
        """Hashed before the clock runs: in the daemon another process does it."""
        hashes = chain_hashes(request.prompt.tolist(), self._block_size)
        return Generate(number, request.prompt, request.max_tokens, 1, 0, GREEDY, hashes), hashes

    def _arrive(self, arrival: tuple[Generate, bytes]) -> None:
        message, hashes = arrival
        self._store.add(message.request, message)
        self._handle(
            RequestArrived(
                time.monotonic(),
                message.request,
                len(message.tokens),
                message.max_tokens,
                hashes=hashes,
            )
        )

    def _ready(self, engine: Engine, step_s: float, token_s: float) -> WorkerReady:
        """What a worker says once it is ready."""
        swap, copy_block_s = engine.swap, 0.0
        if swap is not None:
            copy_block_s = measure_copy(swap)
            swap.listen(self._said.put, self._said.put)
        return WorkerReady(
            time.monotonic(),
            0,
            engine.cache.num_blocks,
            engine.cache.block_bytes,
            step_s,
            swap.pool.num_blocks if swap else 0,
            copy_block_s,
            token_s,
        )
