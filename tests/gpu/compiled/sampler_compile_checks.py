"""The sampler's kernels build for GPUs that need not be there, and once for all batches."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

from benchmarks.gpu.report import Check
from daemon.engine.cuda.triton.edit import SlotTables, edit_logits, forbid
from daemon.engine.cuda.triton.sample import sample
from tests.gpu.compiled.compile_checks import SHARED_LIMITS_BYTES
from tests.gpu.compiled.launches import Launches, compiled_for

ROWS = (2, 1, 3, 16, 17)
"""Batches for which all must be compiled by the first of them."""
VOCABS = (128_256, 50_257)
"""The vocabulary of Llama 3, and one whose rows begin anywhere."""
WAYS = {"greedy": (False, False), "drawing": (True, False), "filtering": (True, True)}
"""Whether rows are drawn, and whether some of those have filters."""


def sampler_compile_checks(
    generations: tuple[int, ...] = tuple(SHARED_LIMITS_BYTES),
    vocabs: tuple[int, ...] = VOCABS,
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32),
) -> Iterator[Check]:
    """Shared memory in bytes, and how much later batches compile anew, for each way to draw."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            with compiled_for(generation) as launches:
                for vocab in vocabs:
                    for dtype in dtypes:
                        yield from _draws(vocab, dtype, generation, launches)
                    yield from _edits(vocab, generation, launches)


def _draws(vocab: int, dtype: torch.dtype, generation: int, launches: Launches) -> Iterator[Check]:
    for name, (drawing, filtering) in WAYS.items():

        def launch(rows: int, drawing: bool = drawing, filtering: bool = filtering) -> None:
            table = _meta(rows, 5, dtype=torch.float64)
            sample(_meta(rows, vocab, dtype=dtype), table, drawing, filtering)

        kind = str(dtype).removeprefix("torch.")
        yield from _checks(f"sample {name} {vocab} {kind}", launch, generation, launches)


def _edits(vocab: int, generation: int, launches: Launches) -> Iterator[Check]:
    def edit(rows: int) -> None:
        # Tables grow by any number of slots, tokens and nudges.
        history, ids, amounts, untils = (
            _meta(64 + rows, width + rows, dtype=dtype)
            for width, dtype in (
                (64, torch.int32),
                (9, torch.int32),
                (9, torch.float32),
                (9, torch.int32),
            )
        )
        copy = _meta(rows, vocab, dtype=torch.float32)
        logits = _meta(rows + 1, vocab, dtype=torch.bfloat16)
        table = _meta(rows, 9, dtype=torch.float64)
        edit_logits(copy, logits, SlotTables(history, ids, amounts, untils), table)

    def mask(rows: int) -> None:
        words = _meta(rows, -(-vocab // 32) + rows, dtype=torch.int32)
        logits = _meta(rows, vocab, dtype=torch.float32)
        forbid(logits, _meta(rows, dtype=torch.int64), words)

    yield from _checks(f"edit_logits {vocab}", edit, generation, launches)
    yield from _checks(f"forbid {vocab}", mask, generation, launches)


def _checks(
    name: str, launch: Callable[[int], None], generation: int, launches: Launches
) -> Iterator[Check]:
    for rows in ROWS:
        launch(rows)
    compiled: list[Any] = launches.take()
    used = max(kernel.metadata.shared for kernel in compiled)
    yield Check(f"sm_{generation} {name}", used, SHARED_LIMITS_BYTES[generation], "bytes")
    kernels = {kernel.metadata.name for kernel in compiled}
    anew = len({kernel.hash for kernel in compiled}) - len(kernels)
    yield Check(f"sm_{generation} {name} anew", anew, 0, "kernels")


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
