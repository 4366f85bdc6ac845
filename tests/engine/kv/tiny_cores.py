"""A Core and its engines in this process: answers of tiny models under everything it may do."""

from collections import deque
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

from daemon.core.core import Core
from daemon.core.values.actions import Deliver, Finished, Send, Submit
from daemon.core.values.events import (
    POLICY_NAMES,
    Configured,
    CopiesDone,
    Event,
    InstanceConfig,
    LinkChanged,
    RequestArrived,
    StepDone,
    TransferEnded,
    WorkerReady,
)
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import assemble
from daemon.memory.hashing import chain_hashes
from daemon.protocol.worker import Copied, Join, Load, Plan, Reply
from daemon.state.request import SamplingParams, sequence_id
from daemon.state.role import Role
from daemon.wire.columns import int32
from tests.hangs import HANG_S

BLOCK_SIZE, MAX_LEN = 4, 200


def engine_of(folder: Path, num_blocks: int, num_host_blocks: int, backend: Backend) -> Engine:
    """An engine whose pool is as large as one of `num_blocks` of all layers."""
    load = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_slots=6,
        max_len=MAX_LEN,
        max_batch_tokens=24,
        num_threads=1,
        num_host_blocks=num_host_blocks,
    )
    with torch.inference_mode():
        model = load_model(folder, "float32", torch.device("cpu"))
        return assemble(model, shape_here(folder), load, lambda _stage, _done: None, backend)


class Served:
    """Answers of one model by a Core and engines, at virtual times."""

    def __init__(self, engines: list[Engine], swap: str = "reactive") -> None:
        self.engines, self.now = engines, 0.0
        names = tuple(
            InstanceConfig(chr(97 + index), Role.MIXED, "cpu") for index in range(len(engines))
        )
        config = Configured(
            0.0,
            names,
            "vllm",
            block_size=BLOCK_SIZE,
            max_running=6,
            max_batch_tokens=24,
            prefill_chunk=16,
            max_waiting=1000,
            max_len=MAX_LEN,
            prefix_cache=True,
            swap=swap,
            policy_names=POLICY_NAMES,
        )
        self.core = Core(config)
        self.known: dict[int, list[int]] = {}  # prompt and delivered tokens
        self.prompts: dict[int, int] = {}  # tokens of each sequence's prompt
        self.num_requests = 0
        self._replies: deque[tuple[int, Reply]] = deque()
        self._copied: list[SimpleQueue[Copied | Exception]] = []
        self._answered: Reply | None = None
        self._ended: deque[tuple[int, int, int]] = deque()  # ends of transfers
        self.num_sent = 0  # of these
        for instance, engine in enumerate(engines):
            self._copied.append(SimpleQueue())
            if engine.swap is not None:
                engine.swap.listen(self._copied[-1].put, self._copied[-1].put)
            num_places = engine.swap.pool.num_blocks if engine.swap is not None else 0
            pool = engine.cache.num_blocks, engine.cache.block_bytes, 0.001, num_places, 1e-9
            held = {"windows": engine.cache.windows, "state_pages": engine.cache.state_pages}
            self.handle(WorkerReady(0.0, instance, *pool, **held))
        for way in [(0, 1), (1, 0)] if len(engines) > 1 else []:
            link = way[0] + 1
            self.handle(LinkChanged(0.0, way[1], way[0], False, True, link))
            self.handle(LinkChanged(0.0, way[0], way[1], True, True, link))

    def ask(self, prompt: list[int], max_tokens: int, n: int = 1) -> list[int]:
        """A request; its sequences."""
        request, self.num_requests = self.num_requests, self.num_requests + 1
        sequences = [sequence_id(request, index) for index in range(n)]
        for sequence in sequences:
            self.known[sequence], self.prompts[sequence] = list(prompt), len(prompt)
        hashes = chain_hashes(prompt, BLOCK_SIZE)
        counts = len(prompt), max_tokens, n, 0
        self.handle(RequestArrived(self.now, request, *counts, hashes))
        return sequences

    def answer(self, sequence: int) -> list[int]:
        """The tokens that a sequence has drawn."""
        return self.known[sequence][self.prompts[sequence] :]

    def step(self) -> bool:
        """Answer the oldest plan, and report ended copies; whether there was any."""
        any_copied = self._report_copies()
        while self._ended:
            self.num_sent += 1
            self.handle(TransferEnded(self.now, *self._ended.popleft(), 0.001))
        if not self._replies:
            return any_copied
        instance, reply = self._replies.popleft()
        self.now += 0.001
        self._answered = reply
        self.handle(StepDone(self.now, instance, reply.step, reply.reasons, 0.001))
        return True

    def settle(self) -> None:
        """Go on until all have ended."""
        for _ in range(3000):
            if not self.step() and not self.core.sequences:
                return
        raise AssertionError("it never comes to rest")

    def _report_copies(self) -> bool:
        reported = False
        for instance, queue in enumerate(self._copied):
            while self.core.instances[instance].scheduler.residency.space.num_flying:
                told = queue.get(timeout=HANG_S)
                assert isinstance(told, Copied), told
                times = told.num_out, told.out_s, told.num_in, told.in_s
                self.handle(CopiesDone(self.now, instance, told.step, *times))
                reported = True
        return reported

    def handle(self, event: Event) -> None:
        """Have the Core take an event, and do what it says."""
        for action in self.core.handle(event):
            if isinstance(action, Submit):
                self._compute(action)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Deliver) and self._answered is not None:
                rows = action.rows.tolist(), action.sequences.tolist()
                for row, sequence in zip(*rows, strict=True):
                    self.known[sequence].append(int(self._answered.tokens[row]))
            elif isinstance(action, Finished):
                assert action.reason, "it failed"

    def _compute(self, action: Submit) -> None:
        batch = action.batch
        inputs: list[int] = []
        members = self.core.instances[batch.instance].scheduler.slots.sequence
        for slot, start, count, fed in zip(
            batch.slots.tolist(),
            batch.starts.tolist(),
            batch.counts.tolist(),
            batch.fed.tolist(),
            strict=True,
        ):
            if fed:
                inputs += self.known[int(members[slot])][start : start + count]
        greedy = SamplingParams(temperature=0.0, ignore_eos=True)
        joins = tuple(
            Join(slot, sequence, self.prompts[sequence], greedy, int32())
            for slot, sequence in zip(
                batch.joined_slots.tolist(), batch.joined_sequences.tolist(), strict=True
            )
        )
        with torch.inference_mode():
            reply = self.engines[batch.instance].run(Plan(batch, int32(inputs), joins))
        self._replies.append((batch.instance, reply))

    def _send(self, send: Send) -> None:
        """Copy blocks from one engine's pool to another's, at once."""
        source, target = self.engines[send.source], self.engines[send.target]
        assert not send.layered
        rows = source.cache.raw
        if send.from_host:
            assert source.swap is not None
            rows = source.swap.pool.rows
        with torch.inference_mode():
            target.cache.raw[send.targets.astype(np.int64)] = rows[send.blocks.astype(np.int64)]
        for end in (send.source, send.target):
            self._ended.append((end, send.transfer, send.blocks.size))
