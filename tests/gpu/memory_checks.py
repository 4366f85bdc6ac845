"""A step that finds no memory on the device: computed row by row, with the same answers."""

import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.gpu.report import Check
from daemon.engine.layers.attention import ATTENTION_NAME
from daemon.engine.step import step
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import assemble
from daemon.protocol.worker import Load
from tests.gpu.engine_runs import Rows
from tests.gpu.scored import BLOCK_SIZE, FLOAT32_LIMIT, GREEDY
from tests.gpu.shape_checks import CONFIGS, random_model, shape_of

ROWS, PROMPT_TOKENS, NUM_TOKENS = 8, 1024, 4
HOG_BYTES = 4 << 30
SPARE_BYTES = 64 << 20
"""Memory that drivers and libraries may keep once they have had it."""

Answers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Ran:
    """The result of a run of all prompts."""

    tokens: Answers  # [row, NUM_TOKENS]
    scores: Answers  # [row, NUM_TOKENS] log-probabilities of those
    peak_bytes: int  # device memory beyond what was held before
    shrunk: int  # steps that were computed row by row


def memory_checks(device: str) -> Iterator[Check]:
    """With room for all, with room for one row only, and with room again."""
    with torch.inference_mode():
        engine = _engine(device)
        _run(engine, _prompts(1))  # libraries take their workspaces
        alone, plenty = _run(engine, _prompts(1)), _run(engine, _prompts(ROWS))
        yield Check("memory: steps that shrink with room", plenty.shrunk, 0)
        torch.cuda.empty_cache()
        free_bytes = torch.cuda.mem_get_info()[0]
        hogs = _hogs(device, (alone.peak_bytes + plenty.peak_bytes) // 2)
        scarce = _run(engine, _prompts(ROWS))
        yield Check("memory: steps that do not shrink without room", abs(scarce.shrunk - 1), 0)
        yield Check("memory: answers row by row", _apart(scarce, plenty), FLOAT32_LIMIT, "nats")
        hogs.clear()
        torch.cuda.empty_cache()
        kept_bytes = free_bytes - torch.cuda.mem_get_info()[0]
        yield Check("memory: not given back", kept_bytes, SPARE_BYTES, "bytes")
        again = _run(engine, _prompts(ROWS))
        yield Check("memory: steps that shrink with room again", again.shrunk, 0)
        yield Check("memory: answers with room again", _apart(again, plenty), FLOAT32_LIMIT, "nats")


def _engine(device: str) -> Engine:
    """Two layers in float32, whose rounding hides nothing."""
    config = CONFIGS["llama-3-8b"]
    load = Load(
        model="",
        device=device,
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=ROWS * (PROMPT_TOKENS + NUM_TOKENS) // BLOCK_SIZE + ROWS,
        max_slots=ROWS,
        max_len=PROMPT_TOKENS + NUM_TOKENS,
        max_batch_tokens=ROWS * PROMPT_TOKENS,
    )
    model = random_model(config, device, ATTENTION_NAME).float()
    return assemble(model, shape_of(config), load, lambda _stage, _done: None)


def _prompts(count: int) -> list[list[int]]:
    chooser = random.Random(4)
    vocab_size = CONFIGS["llama-3-8b"].vocab_size
    return [[chooser.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def _run(engine: Engine, prompts: list[list[int]]) -> _Ran:
    """All prompts in one step, then some decode steps."""
    heard = _Heard()
    step.log.addHandler(heard)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held_bytes = torch.cuda.memory_allocated()
    rows = Rows(engine.run, prompts, NUM_TOKENS, BLOCK_SIZE, GREEDY)
    replies = [rows.prefill_together()] + [rows.decode() for _ in range(NUM_TOKENS - 1)]
    rows.leave()
    step.log.removeHandler(heard)
    tokens = np.stack([reply.tokens for reply in replies], 1).astype(np.float32)
    scores = [reply.logprobs.chosen for reply in replies if reply.logprobs is not None]
    peak_bytes = torch.cuda.max_memory_allocated() - held_bytes
    return _Ran(tokens, np.stack(scores, 1), peak_bytes, heard.count)


def _hogs(device: str, left_bytes: int) -> list[torch.Tensor]:
    """Memory of the device taken until about `left_bytes` are free."""
    hogs = []
    while (spare_bytes := torch.cuda.mem_get_info()[0] - left_bytes) > SPARE_BYTES // 8:
        size_bytes = min(spare_bytes, HOG_BYTES)
        hogs.append(torch.empty(size_bytes, dtype=torch.uint8, device=device))
    return hogs


def _apart(one: _Ran, other: _Ran) -> float:
    """The largest difference of their scores; NaN where a token differs."""
    if not np.array_equal(one.tokens, other.tokens):
        return float("nan")
    return float(np.abs(one.scores - other.scores).max())


class _Heard(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: Any) -> None:
        """See `logging.Handler`."""
        self.count += 1
