"""A worker that is killed in the middle of a step: what it held is free, and another goes on."""

import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.report import Check
from daemon.protocol.worker import Failed, Load, Plan, Ready, Reply
from tests.engine.process import WorkerProcess
from tests.gpu.engine_checks import CONTEXT, prompts, save
from tests.gpu.engine_runs import Rows, load_message
from tests.gpu.scored import BLOCK_SIZE, GREEDY

NUM_TOKENS = 64
PLANS_AHEAD = 32
"""Sent to the worker that dies, so that it dies while it computes."""
PATIENCE_S = 10.0
SPARE_BYTES = 64 << 20


def worker_checks(device: str) -> Iterator[Check]:
    """One worker answers; one is killed while it computes; the next answers as the first."""
    before_bytes = _free_bytes(device)
    with tempfile.TemporaryDirectory() as folder:
        save("Llama", Path(folder))
        message = load_message(Path(folder), device, "float32", 128, 8, CONTEXT)
        first = _answers(message)
        yield Check("killed worker: died of it", abs(_killed(message) + signal.SIGKILL), 0)
        missing_bytes, waited_s = _missing(device, before_bytes)
        note = f"bytes of device memory, after {waited_s:.1f} s"
        yield Check("killed worker: kept", missing_bytes, SPARE_BYTES, note)
        later = _answers(message)
        yield Check("killed worker: other tokens of the next", int((first != later).sum()), 0)


def _answers(message: Load) -> npt.NDArray[np.int32]:
    """The tokens [step, row] that a worker of its own draws; it is told to go in the end."""
    with WorkerProcess() as worker:
        _load(worker, message)

        def run(plan: Plan) -> Reply:
            worker.send(plan)
            return _reply(worker)

        rows = Rows(run, prompts(), NUM_TOKENS, BLOCK_SIZE, GREEDY)
        replies = [rows.prefill_together()] + [rows.decode() for _ in range(NUM_TOKENS - 1)]
        return np.stack([reply.tokens for reply in replies])


def _killed(message: Load) -> int:
    """The exit status of a worker that is killed when it has answered the first of many plans."""
    with WorkerProcess() as worker:
        _load(worker, message)
        plans: list[Plan] = []
        nothing = Reply(0, np.zeros(0, np.int32), np.zeros(0, np.uint8), 0.0, 0.0)

        def keep(plan: Plan) -> Reply:
            plans.append(plan)
            return nothing

        rows = Rows(keep, prompts(), NUM_TOKENS, BLOCK_SIZE, GREEDY)
        rows.prefill_together()
        for _ in range(PLANS_AHEAD):
            rows.decode()
        for plan in plans:
            worker.send(plan)
        _reply(worker)
        worker.process.send_signal(signal.SIGKILL)
        return worker.process.wait(PATIENCE_S)


def _load(worker: WorkerProcess, message: Load) -> None:
    answer = worker.load(message)
    if not isinstance(answer, Ready):
        raise RuntimeError(f"the worker did not get ready: {answer.message}")


def _reply(worker: WorkerProcess) -> Reply:
    """The next reply; whatever else a worker tells of is passed over."""
    while not isinstance(answer := worker.receive(), Reply):
        if isinstance(answer, Failed):
            raise RuntimeError(f"the worker failed: {answer.message}")
    return answer


def _missing(device: str, before_bytes: int) -> tuple[int, float]:
    """Device memory that does not come back, and how long it took or was waited for."""
    began_s = time.monotonic()
    while (missing := before_bytes - _free_bytes(device)) > SPARE_BYTES:
        if time.monotonic() - began_s > PATIENCE_S:
            break
        time.sleep(0.05)
    return max(0, missing), time.monotonic() - began_s


def _free_bytes(device: str) -> int:
    """Free memory of a GPU; 0 where there is none."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else 0
