"""Swap copies beside the steps: blocks leave for the host pool and come back.

Whatever runs at the same time, copies do what they would do one after another: plan by plan, and
of a plan the blocks that go out first. So a block may be asked back in the plan that sends it out.
Both directions run at once where they name different blocks. What steps do to these blocks is the
planner's affair: no step from a copy's plan on writes a block that goes out, or touches one that
comes in, unless it awaits that plan or the copy was reported.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread

import numpy as np

from daemon.engine.batch.streams import Here, Stream, Streams, Work, WorkEvent, streams_of
from daemon.engine.families import NONE, ByTorch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.swap.block_copies import Copies, copies_of
from daemon.engine.swap.host_pool import HostPool
from daemon.protocol.worker import Copied
from daemon.state.batch import Batch
from daemon.wire.columns import Column

log = logging.getLogger(__name__)


class SwapLink:
    """The link of a KV pool and its host pool. One thread orders and waits, another reports."""

    def __init__(self, cache: PagedKV, pool: HostPool, streams: Streams, copies: Copies) -> None:
        self.cache, self.pool = cache, pool
        self._streams = streams
        self._copies = copies
        self._outs = _Lane(streams.outs, cache.num_blocks, pool.num_blocks)
        self._ins = _Lane(streams.ins, cache.num_blocks, pool.num_blocks)
        self._number = 0
        self._jobs: deque[_Job] = deque()  # those that may not be done, in order
        self._copied: Callable[[Copied], None] = _unheard
        self._failed: Callable[[Exception], None] = _logged
        self._watched: SimpleQueue[_Job | None] = SimpleQueue()
        self._watcher = Thread(target=self._watch, name="swap-watch", daemon=True)
        self._watcher.start()

    def listen(self, copied: Callable[[Copied], None], failed: Callable[[Exception], None]) -> None:
        """Set the callbacks of the link's own thread: a plan's copies are done, or one failed."""
        self._copied, self._failed = copied, failed

    def order(self, batch: Batch) -> None:
        """Begin a plan's copies; call it before the plan's step, after all earlier steps.

        Raises ValueError where the plan names blocks that do not exist.
        """
        num_out, num_in = len(batch.out_blocks), len(batch.in_blocks)
        if not num_out and not num_in:
            return
        self._check(batch)
        while self._jobs and self._jobs[0].done:
            job = self._jobs.popleft()
            for lane in (self._outs, self._ins):
                lane.forget(job.number)
        self._number += 1
        before = self._streams.compute.record()
        outs = ins = None
        if num_out:
            outs = self._begin_out(batch.out_blocks, batch.out_places, before)
        if num_in:
            ins = self._begin_back(batch.in_places, batch.in_blocks, before)
        job = _Job(self._number, batch.step, num_out, outs, num_in, ins)
        self._jobs.append(job)
        self._watched.put(job)

    def wait(self, step: int) -> float:
        """Have steps from now on wait for the copies of all plans up to `step`.

        Returns the seconds for which this thread waited: none where a GPU waits by itself. Raises
        StreamError where a copy failed.
        """
        began = time.perf_counter()
        for job in self._jobs:
            if job.step > step:
                break
            if not job.done:
                for span in job.spans:
                    self._streams.compute.wait(span.ended)
        return time.perf_counter() - began

    def written(self, places: Column) -> WorkEvent:
        """The event at which all copies ordered so far to these places of the host pool are done.

        Already reached where there are no such places: their reader checks them.
        """
        places = places[(places >= 0) & (places < self.pool.num_blocks)]
        return self._outs.writing(places) or Here().record()

    def close(self) -> None:
        """Finish the copies, report them, and end the threads."""
        self._streams.close()
        self._watched.put(None)
        self._watcher.join()

    def _begin_out(self, blocks: Column, places: Column, before: WorkEvent) -> "_Span":
        fills = self.cache.fills[blocks]
        self.pool.fills[places] = fills
        after = [before, *self._ins.touching(blocks, places)]
        work = partial(self._copies.out, blocks, places, fills)
        return self._outs.run(self._number, work, blocks, places, after)

    def _begin_back(self, places: Column, blocks: Column, before: WorkEvent) -> "_Span":
        self.cache.fills[blocks] = self.pool.fills[places]
        # Steps that answered without a token may still be computing in blocks that are free now.
        after = [before, *self._outs.touching(blocks, places)]
        work = partial(self._copies.back, places, blocks)
        return self._ins.run(self._number, work, blocks, places, after)

    def _check(self, batch: Batch) -> None:
        pairs = ((batch.out_blocks, batch.out_places), (batch.in_blocks, batch.in_places))
        for blocks, places in pairs:
            if len(blocks) != len(places):
                raise ValueError(f"the plan swaps {len(blocks)} blocks over {len(places)} places")
            for what, column, count in (
                ("KV pool", blocks, self.cache.num_blocks),
                ("host pool", places, self.pool.num_blocks),
            ):
                if len(column) and not 0 <= column.min() <= column.max() < count:
                    names = f"{column.min()} .. {column.max()}"
                    raise ValueError(f"the plan swaps blocks {names} of a {what} of {count}")

    def _watch(self) -> None:
        try:
            while (job := self._watched.get()) is not None:
                out_s, in_s = (span.seconds() if span else 0.0 for span in (job.outs, job.ins))
                job.done = True
                self._copied(Copied(job.step, job.num_out, out_s, job.num_in, in_s))
        except Exception as error:  # noqa: BLE001 - this thread reports its own errors
            self._failed(error)


def swap_link(
    cache: PagedKV, num_host_blocks: int, compress: bool, by_torch: ByTorch = NONE
) -> SwapLink | None:
    """The link to a new host pool of `num_blocks`; None for 0. Raises HostPoolError."""
    if not num_host_blocks:
        return None
    pool = HostPool(num_host_blocks, cache, compress)
    return SwapLink(cache, pool, streams_of(cache.blocks.device), copies_of(cache, pool, by_torch))


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of a stream's work."""

    began: WorkEvent
    ended: WorkEvent

    def seconds(self) -> float:
        """How long it took, once it is done."""
        self.ended.synchronize()
        return self.ended.seconds_since(self.began)


@dataclass(slots=True)
class _Job:
    """A plan's copies."""

    number: int
    step: int
    num_out: int
    outs: _Span | None
    num_in: int
    ins: _Span | None
    done: bool = False

    @property
    def spans(self) -> list[_Span]:
        """The directions that this job copies in."""
        return [span for span in (self.outs, self.ins) if span is not None]


class _Lane:
    """One direction: its stream, and which job last touched each block of either pool."""

    def __init__(self, stream: Stream, num_blocks: int, num_places: int) -> None:
        self._stream = stream
        self._by_block = np.zeros(num_blocks, np.int64)  # jobs count from 1
        self._by_place = np.zeros(num_places, np.int64)
        self._ends: dict[int, WorkEvent] = {}  # of jobs that may not be done

    def touching(self, blocks: Column, places: Column) -> list[WorkEvent]:
        """Events to wait for so that no copy of this lane touches these blocks any more."""
        newest = max(int(self._by_block[blocks].max()), int(self._by_place[places].max()))
        return [self._ends[newest]] if newest in self._ends else []

    def writing(self, places: Column) -> WorkEvent | None:
        """The event at which this lane's copies to places are done; None if there is none."""
        newest = int(self._by_place[places].max(initial=0))
        return self._ends.get(newest)

    def run(
        self, number: int, work: Work, blocks: Column, places: Column, after: list[WorkEvent]
    ) -> _Span:
        """Queue a job's copies behind these events."""
        for event in after:
            self._stream.wait(event)
        began = self._stream.record()
        self._stream.run(work)
        ended = self._stream.record()
        self._by_block[blocks] = self._by_place[places] = number
        self._ends[number] = ended
        return _Span(began, ended)

    def forget(self, number: int) -> None:
        """A job is done."""
        self._ends.pop(number, None)


def _unheard(copied: Copied) -> None:
    """Before anyone listens."""


def _logged(error: Exception) -> None:
    log.error("swapping ended: %s", error)
