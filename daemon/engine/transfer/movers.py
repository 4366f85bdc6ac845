"""Copies between a pool and slots of host memory, or another pool, on streams of their own.

What is called here queues work behind an event of the steps and returns the event behind the work;
nothing waits. Each mover is called by one thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from daemon.engine.batch.streams import (
    CudaStream,
    Stream,
    ThreadStream,
    Work,
    WorkEvent,
    compute_stream,
)
from daemon.engine.families import MOVE, NONE, ByTorch
from daemon.engine.swap.block_copies import runs
from daemon.engine.transfer import rows
from daemon.engine.transfer.layout import WHOLE, Layout
from daemon.engine.transfer.rows import Spans
from daemon.wire.columns import Column

DIRECT_BYTES = 1 << 20
"""Blocks of this size fill a link each on its own; smaller pieces are gathered first."""


STAGE_BYTES = 16 << 20
"""Staging bytes for blocks that go from the host's memory to another process's GPU."""


class Movers(Protocol):
    """Between blocks int32 [n] of a pool and a slot of host memory, uint8 [n * bytes of a part]."""

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """Copy spans of blocks to a slot."""

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """Copy a slot to spans of blocks."""

    def close(self) -> None:
        """Finish what is queued."""


def movers_of(
    layout: Layout, pool: torch.Tensor, slot_bytes: int, by_torch: ByTorch = NONE
) -> Movers:
    """How rows of a pool, uint8 [block, block_bytes], get to slots and back; parts of them by
    torch, since they lie in many pieces.
    """
    if not pool.is_cuda:
        return HostMovers(pool)
    gather, scatter = rows.gather, rows.scatter
    if MOVE not in by_torch and layout.part is None:
        from daemon.engine.transfer import gpu_rows

        gpu_rows.warm_up(layout, pool.device)
        gather, scatter = gpu_rows.gather, gpu_rows.scatter
    copies, others, kernels = (CudaStream(torch.cuda.Stream(pool.device)) for _ in range(3))
    streams = (copies, others), kernels
    movers = GpuMovers(pool, slot_bytes, streams, gather, scatter)
    # The stages may lie where a step that is still computing has its states.
    made = compute_stream(pool.device).record()
    for stream in (copies, others, kernels):
        stream.wait(made)
    return movers


class HostMovers:
    """Movers of a pool in host memory; a thread copies."""

    def __init__(self, pool: torch.Tensor) -> None:
        self._pool = pool
        self._stream = ThreadStream("transfer-copy")

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """See `Movers`."""
        return _run(self._stream, partial(rows.gather, self._pool, spans, blocks, slot), after)

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """See `Movers`."""
        return _run(self._stream, partial(rows.scatter, slot, self._pool, spans, blocks), after)

    def close(self) -> None:
        """See `Movers`."""
        self._stream.close()


class GpuMovers:
    """Movers of a pool in a GPU's memory.

    Large blocks are copied each by the copy engine, which takes nothing from the multiprocessors.
    Smaller pieces pass through a stage on the device, which a kernel fills or empties while the
    copy engine is at the other one. Slots alternate between two lanes, each with a stage and a
    stream for copies, so that the link is always busy.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        slot_bytes: int,
        streams: tuple[tuple[Stream, Stream], Stream],
        gather: Callable[..., None],
        scatter: Callable[..., None],
    ) -> None:
        """`streams`: two for copies, and one for kernels."""
        self._pool = pool
        copies, self._kernels = streams
        self._gather, self._scatter = gather, scatter
        stages = torch.empty((2, slot_bytes), dtype=torch.uint8, device=pool.device)
        self._lanes = [_Lane(*lane) for lane in zip(copies, stages, strict=True)]
        self._turn = 0

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """See `Movers`."""
        lane = self._next()
        if self._direct(spans):
            return _run(lane.copies, partial(self._each_out, blocks, slot), after)
        stage = lane.stage[: len(slot)]
        if lane.free is not None:
            self._kernels.wait(lane.free)
        work = partial(self._gather, self._pool, spans, blocks, stage)
        filled = _run(self._kernels, work, after)
        lane.free = _run(lane.copies, partial(_copy, slot, stage), filled)
        return lane.free

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: WorkEvent) -> WorkEvent:
        """See `Movers`."""
        lane = self._next()
        if self._direct(spans):
            return _run(lane.copies, partial(self._each_back, blocks, slot), after)
        stage = lane.stage[: len(slot)]
        if lane.free is not None:
            lane.copies.wait(lane.free)
        lane.copies.run(partial(_copy, stage, slot))
        self._kernels.wait(lane.copies.record())
        work = partial(self._scatter, stage, self._pool, spans, blocks)
        lane.free = _run(self._kernels, work, after)
        return lane.free

    def close(self) -> None:
        """See `Movers`."""
        for stream in (*(lane.copies for lane in self._lanes), self._kernels):
            ended: Any = stream.record()
            ended.synchronize()

    def _direct(self, spans: Spans) -> bool:
        return spans[0].size == self._pool.shape[1] >= DIRECT_BYTES

    def _each_out(self, blocks: Column, slot: torch.Tensor) -> None:
        places = slot.view(len(blocks), -1)
        for place, block, count in runs(np.arange(len(blocks)), blocks):
            _copy(places[place : place + count], self._pool[block : block + count])

    def _each_back(self, blocks: Column, slot: torch.Tensor) -> None:
        places = slot.view(len(blocks), -1)
        for place, block, count in runs(np.arange(len(blocks)), blocks):
            _copy(self._pool[block : block + count], places[place : place + count])

    def _next(self) -> "_Lane":
        self._turn = 1 - self._turn
        return self._lanes[self._turn]


@dataclass(slots=True)
class _Lane:
    """A stream for copies, its stage uint8 [slot_bytes] on the device, and when that is free."""

    copies: Stream
    stage: torch.Tensor
    free: WorkEvent | None = None


class PeerMover:
    """The mover from a GPU's pool straight into another process's, mapped at `address` here."""

    def __init__(self, layout: Layout, pool: torch.Tensor, address: int) -> None:
        from daemon.engine.transfer import gpu_rows

        gpu_rows.warm_up(layout, pool.device)
        self._across = gpu_rows.across
        self._pool, self._address = pool, address
        self._whole = layout.spans(WHOLE)
        self._stage: torch.Tensor | None = None
        self._stream: Stream = CudaStream(torch.cuda.Stream(pool.device))

    def stage(self) -> torch.Tensor:
        """Host memory for some whole blocks, uint8 [n, block_bytes], pinned at the first call."""
        if self._stage is None:
            shape = max(1, STAGE_BYTES // self._pool.shape[1]), self._pool.shape[1]
            on_gpu = self._pool.device.type == "cuda"
            self._stage = torch.empty(shape, dtype=torch.uint8, pin_memory=on_gpu)
        return self._stage

    def push(self, rows: torch.Tensor, targets: Column) -> WorkEvent:
        """Copy rows uint8 [n, block_bytes] of the stage to blocks `targets` of the other pool."""

        def work() -> None:
            here = rows.to(self._pool.device, non_blocking=True)
            numbers = np.arange(len(rows), dtype=np.int32)
            self._across(here, self._whole, numbers, self._address, targets)

        self._stream.run(work)
        ended: Any = self._stream.record()
        return ended

    def across(self, spans: Spans, blocks: Column, targets: Column, after: WorkEvent) -> WorkEvent:
        """Copy spans of blocks to blocks `targets` int32 [n] of the other pool."""
        work = partial(self._across, self._pool, spans, blocks, self._address, targets)
        return _run(self._stream, work, after)

    def close(self) -> None:
        """Finish what is queued."""
        self._stream.record().synchronize()


def _run(stream: Stream, work: Work, after: WorkEvent) -> WorkEvent:
    """Queue work behind an event; the event behind the work."""
    stream.wait(after)
    stream.run(work)
    ended: Any = stream.record()
    return ended


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
