"""Copies between a pool and slots of host memory, or another pool, on streams of their own.

What is called here queues work behind an event of the steps and returns the event behind the work;
nothing waits. Each mover is called by one thread.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from daemon.engine.copies import runs
from daemon.engine.handoff import rows
from daemon.engine.handoff.layout import Layout
from daemon.engine.handoff.rows import Spans
from daemon.engine.streams import CudaStream, Event, Stream, ThreadStream, Work
from daemon.wire.columns import Column

DIRECT_BYTES = 1 << 20
"""Blocks of this size fill a link each on its own; smaller pieces are gathered first."""


class Movers(Protocol):
    """Between blocks int32 [n] of a pool and a slot of host memory, uint8 [n * bytes of a part]."""

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """Copy spans of blocks to a slot."""

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """Copy a slot to spans of blocks."""

    def close(self) -> None:
        """Finish what is queued."""


def movers_of(layout: Layout, pool: torch.Tensor, slot_bytes: int) -> Movers:
    """How rows of a pool, uint8 [block, block_bytes], get to slots and back."""
    if not pool.is_cuda:
        return HostMovers(pool)
    from daemon.engine.handoff import gpu_rows

    gpu_rows.warm_up(layout, pool.device)
    copies, kernels = (CudaStream(torch.cuda.Stream(pool.device)) for _ in range(2))
    return GpuMovers(pool, slot_bytes, (copies, kernels), gpu_rows.gather, gpu_rows.scatter)


class HostMovers:
    """A pool in host memory; a thread copies."""

    def __init__(self, pool: torch.Tensor) -> None:
        self._pool = pool
        self._stream = ThreadStream("handoff-copy")

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """See `Movers`."""
        return _run(self._stream, partial(rows.gather, self._pool, spans, blocks, slot), after)

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """See `Movers`."""
        return _run(self._stream, partial(rows.scatter, slot, self._pool, spans, blocks), after)

    def close(self) -> None:
        """See `Movers`."""
        self._stream.close()


class GpuMovers:
    """A pool in a GPU's memory.

    Large blocks are copied each by the copy engine, which takes nothing from the multiprocessors.
    Smaller pieces pass through one of two stages on the device: a kernel is at work on one while
    the copy engine is on the other.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        slot_bytes: int,
        streams: tuple[Stream, Stream],
        gather: Callable[..., None],
        scatter: Callable[..., None],
    ) -> None:
        """`streams`: for copies, and for kernels."""
        self._pool = pool
        self._copies, self._kernels = streams
        self._gather, self._scatter = gather, scatter
        stages = torch.empty((2, slot_bytes), dtype=torch.uint8, device=pool.device)
        self._stages = [_Stage(octets) for octets in stages]
        self._turn = 0

    def out(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """See `Movers`."""
        if self._direct(spans):
            return _run(self._copies, partial(self._each_out, blocks, slot), after)
        stage = self._next()
        octets = stage.octets[: len(slot)]
        if stage.free is not None:
            self._kernels.wait(stage.free)
        filled = _run(
            self._kernels, partial(self._gather, self._pool, spans, blocks, octets), after
        )
        stage.free = _run(self._copies, partial(_copy, slot, octets), filled)
        return stage.free

    def back(self, spans: Spans, blocks: Column, slot: torch.Tensor, after: Event) -> Event:
        """See `Movers`."""
        if self._direct(spans):
            return _run(self._copies, partial(self._each_back, blocks, slot), after)
        stage = self._next()
        octets = stage.octets[: len(slot)]
        if stage.free is not None:
            self._copies.wait(stage.free)
        self._copies.run(partial(_copy, octets, slot))
        self._kernels.wait(self._copies.record())
        work = partial(self._scatter, octets, self._pool, spans, blocks)
        stage.free = _run(self._kernels, work, after)
        return stage.free

    def close(self) -> None:
        """See `Movers`."""
        for stream in (self._copies, self._kernels):
            stream.record().synchronize()

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

    def _next(self) -> "_Stage":
        self._turn = 1 - self._turn
        return self._stages[self._turn]


class _Stage:
    """Device memory between kernels and copies, and when its last use ends."""

    def __init__(self, octets: torch.Tensor) -> None:
        self.octets = octets
        self.free: Event | None = None


class PeerMover:
    """From a GPU's pool straight into another process's, which lies at `address` here."""

    def __init__(self, layout: Layout, pool: torch.Tensor, address: int) -> None:
        from daemon.engine.handoff import gpu_rows

        gpu_rows.warm_up(layout, pool.device)
        self._across = gpu_rows.across
        self._pool, self._address = pool, address
        self._stream: Stream = CudaStream(torch.cuda.Stream(pool.device))

    def across(self, spans: Spans, blocks: Column, targets: Column, after: Event) -> Event:
        """Copy spans of blocks to blocks `targets` int32 [n] of the other pool."""
        work = partial(self._across, self._pool, spans, blocks, self._address, targets)
        return _run(self._stream, work, after)

    def close(self) -> None:
        """Finish what is queued."""
        self._stream.record().synchronize()


def _run(stream: Stream, work: Work, after: Event) -> Event:
    """Queue work behind an event; the event behind the work."""
    stream.wait(after)
    stream.run(work)
    ended: Any = stream.record()
    return ended


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
