"""The sending end of a link."""

import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.batch.streams import Stream, WorkEvent
from daemon.engine.transfer.credits import AbandonedError
from daemon.engine.transfer.faults import LinkFaults, Stage
from daemon.engine.transfer.layout import WHOLE, Layout, TransferError
from daemon.engine.transfer.messages import (
    Broken,
    Bye,
    Cancelled,
    Declined,
    Done,
    Landed,
    Lost,
    Message,
    News,
    Opened,
    TransferSocket,
)
from daemon.engine.transfer.routes import Outgoing, QueuedCopy, Route, TransferPiece
from daemon.protocol.worker import CANCELLED
from daemon.wire.columns import Column

Tell = Callable[[News], None]

CLOSED = "the sender closed"


class PoolCounts(NamedTuple):
    """Blocks of the pools that a link joins."""

    here: int
    there: int
    host: int = 0  # beside the pool here


class Sender:
    """Transfers to one receiver; `connect_sender` makes it.

    One thread calls the public methods, which return at once; `send` of computed blocks may come
    from another. Of its own threads one queues copies, one waits for them and one listens; they
    report the end of each transfer, one call at a time: `Done` or `Broken`, and `Lost` last where
    the link ends by itself. Until a transfer's end was reported, no step may write its blocks.
    """

    def __init__(
        self,
        link: TransferSocket,
        layout: Layout,
        counts: PoolCounts,
        compute: Stream,
        route: Route,
        faults: LinkFaults | None = None,
    ) -> None:
        """`start` begins the threads."""
        self._link, self._layout, self._counts = link, layout, counts
        self._compute, self._route = compute, route
        self._begun = compute.record()
        self._faults = faults or LinkFaults()
        self._tell: Tell = _unheard
        self._open: dict[int, Outgoing] = {}
        self._reason = ""  # why the link ended
        self._lock = threading.Lock()  # of the two above
        self._telling = threading.Lock()
        self._layered: list[Outgoing] = []  # whose layers the step computes
        self._pieces: SimpleQueue[TransferPiece | Outgoing | None] = SimpleQueue()
        self._queued: SimpleQueue[QueuedCopy | Message | None] = SimpleQueue()
        self._queuer, self._waiter, self._hearer = (
            threading.Thread(target=work, name=f"transfer-{name}", daemon=True)
            for name, work in (("queue", self._queue), ("wait", self._wait), ("hear", self._hear))
        )

    @property
    def direct(self) -> bool:
        """Whether blocks go straight into the receiver's pool."""
        return self._route.direct

    def start(self, tell: Tell) -> None:
        """Start; `tell` is called on threads of the sender's own, and may not close it."""
        self._tell = tell
        for thread in (self._queuer, self._waiter, self._hearer):
            thread.start()

    def send(
        self, transfer: int, blocks: Column, targets: Column, fills: Column, computed: bool = False
    ) -> None:
        """Copy whole blocks, int32 [n], to the receiver's `targets`; `fills` tokens are written.

        `transfer`: a number that was not used before. Copies begin once all steps that were
        launched before are computed; `computed`: at once, as answered steps computed all of them.
        Raises ValueError for blocks that do not exist or a transfer that is open, TransferError
        once the link ended.
        """
        job = self._begin(Outgoing(transfer, blocks, targets, fills, 1))
        after = self._begun if computed else self._compute.record()
        self._pieces.put(TransferPiece(job, WHOLE, after, last=True))

    def send_host(
        self, transfer: int, places: Column, targets: Column, fills: Column, after: WorkEvent
    ) -> None:
        """As `send`, of blocks at `places` int32 [n] of the host pool, once `after` is reached."""
        job = self._begin(Outgoing(transfer, places, targets, fills, 1, from_host=True))
        self._pieces.put(TransferPiece(job, WHOLE, after, last=True))

    def refuse(self, transfer: int, reason: str) -> None:
        """Have both ends report a transfer that cannot start as `Broken`.

        Raises TransferError once the link ended, and ValueError where the transfer is open.
        """
        none = np.zeros(0, np.int32)
        self._pieces.put(self._opened(Outgoing(transfer, none, none, none, 0, refused=reason)))

    def begin_layers(self, transfer: int, blocks: Column, targets: Column, fills: Column) -> None:
        """As `send`, of blocks that the next step completes: each layer once it is computed.

        For long prompts, whose transfer overlaps with their computation. Call it before the step
        begins, and `after_step` behind it; if the step fails, the transfer must be cancelled.
        """
        num_parts = self._layout.layers.size
        self._layered.append(self._begin(Outgoing(transfer, blocks, targets, fills, num_parts)))

    def after_layer(self, layer: int) -> None:
        """Note that the step has launched the writes of a layer's keys and values (`watch`).

        Layers come in order; behind one that is missing, all are `after_step`'s.
        """
        number = layer - self._layout.layers.first
        if number < self._layout.layers.size:
            jobs = [job for job in self._layered if job.num_queued == number]
            self._queue_layers(jobs, number + 1)

    def after_step(self) -> None:
        """Once the step is launched: send the layers that were not sent."""
        self._queue_layers(self._layered, self._layout.layers.size)
        self._layered = []

    def cancel(self, transfer: int) -> None:
        """Send nothing more of a transfer; if it is open, both ends report it as `Broken`."""
        with self._lock:
            job = self._open.get(transfer)
        if job is not None and not job.cancelled:
            job.cancelled = True
            self._layered = [other for other in self._layered if other is not job]
            self._pieces.put(job)

    def close(self) -> None:
        """Break off open transfers, end the link, and free all memory."""
        if self._hearer.ident is None:
            self.start(_unheard)
        self._end(CLOSED)
        for thread in (self._queuer, self._waiter, self._hearer):
            thread.join()
        self._link.close()

    def _queue_layers(self, jobs: list[Outgoing], end: int) -> None:
        """Queue the layers up to `end` of these transfers that are not yet."""
        if not jobs:
            return
        after = self._compute.record()
        for job in jobs:
            for layer in range(job.num_queued, end):
                self._pieces.put(TransferPiece(job, layer, after, layer == job.num_parts - 1))
            job.num_queued = end

    def _begin(self, job: Outgoing) -> Outgoing:
        if not len(job.blocks) == len(job.targets) == len(job.fills) > 0:
            raise ValueError(f"transfer {job.number}: not as many blocks as targets and fills")
        here, there, host = self._counts
        source = (host, "the host pool") if job.from_host else (here, "this pool")
        for column, (count, what) in (
            (job.blocks, source),
            (job.targets, (there, "the receiver's pool")),
        ):
            if not 0 <= column.min() <= column.max() < count:
                raise ValueError(f"transfer {job.number}: blocks beyond the {count} of {what}")
        if len(np.unique(job.targets)) < len(job.targets):
            raise ValueError(f"transfer {job.number} has a target twice")
        return self._opened(job)

    def _opened(self, job: Outgoing) -> Outgoing:
        with self._lock:
            if self._reason:
                raise TransferError(self._reason)
            if job.number in self._open:
                raise ValueError(f"transfer {job.number} is open")
            self._open[job.number] = job
        return job

    def _queue(self) -> None:
        """Begin copies on a thread as there is room for them."""
        try:
            with torch.inference_mode():
                while (piece := self._pieces.get()) is not None:
                    if isinstance(piece, Outgoing):
                        self._queued.put(self._last_of(piece))
                    elif not piece.transfer.cancelled:
                        self._copy(piece)
        except AbandonedError:
            pass
        except Exception as error:  # noqa: BLE001 - this thread reports its own errors
            self._end(f"the sender failed: {type(error).__name__}: {error}")
        self._queued.put(None)

    def _last_of(self, job: Outgoing) -> Message:
        """The last message to the receiver of a transfer that fails or is cancelled."""
        if job.refused:
            return Declined(job.number, job.refused)
        self._announce(job)
        return Cancelled(job.number)

    def _announce(self, job: Outgoing) -> None:
        """Announce a transfer to the receiver, once: it will report its end."""
        if not job.announced:
            job.announced = True
            self._faults.reach(Stage.OPEN, self._link)
            self._route.begin(job.number)
            targets, fills = job.targets.astype(np.int32), job.fills.astype(np.int32)
            self._link.send(Opened(job.number, targets, fills, job.num_parts))

    def _copy(self, piece: TransferPiece) -> None:
        job = piece.transfer
        self._announce(job)
        for copied in self._route.copies(piece):
            self._queued.put(copied)
            if job.cancelled:
                return

    def _wait(self) -> None:
        """Wait for copies on a thread, and report them to the receiver."""
        try:
            while (queued := self._queued.get()) is not None:
                message = queued.wait() if isinstance(queued, QueuedCopy) else queued
                if message is not None:
                    self._faults.reach(Stage.FILL, self._link)
                    self._link.send(message)
                if isinstance(message, Cancelled):
                    self._finish(message.transfer, CANCELLED)
                elif isinstance(message, Declined):
                    self._finish(message.transfer, message.reason)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(f"the sender failed: {type(error).__name__}: {error}")
            self._queuer.join()
        self._last_words()

    def _hear(self) -> None:
        """Read the receiver's messages on a thread."""
        reason = "the receiver is gone"
        try:
            while (message := self._link.receive()) is not None:
                if isinstance(message, Bye):
                    reason = message.reason
                    break
                if isinstance(message, Landed):
                    self._finish(message.transfer)
                else:
                    self._route.hear(message)
        except Exception as error:  # noqa: BLE001 - as above
            reason = f"the sender failed: {type(error).__name__}: {error}"
        self._end(reason)

    def _finish(self, transfer: int, reason: str = "") -> None:
        """Report the end of a transfer, unless that was reported."""
        with self._lock:
            job = self._open.pop(transfer, None)
        if job is not None:
            self._route.forget(transfer)
            elapsed_s = time.perf_counter() - job.began_s
            with self._telling:
                if reason:
                    self._tell(Broken(transfer, reason, elapsed_s=elapsed_s))
                else:
                    self._tell(Done(transfer, elapsed_s, len(job.blocks)))

    def _end(self, reason: str) -> None:
        """End the link: nothing new begins; the first reason counts."""
        with self._lock:
            if self._reason:
                return
            self._reason = reason
        self._route.abandon()
        self._pieces.put(None)

    def _last_words(self) -> None:
        """Report open transfers once all that was queued is done, or never will be."""
        with contextlib.suppress(Exception):  # a GPU that failed runs no copies either
            self._route.close()
        self._link.send(Bye(self._reason))
        self._link.hang_up()
        self._hearer.join()
        for transfer in sorted(self._open):
            self._finish(transfer, self._reason)
        if self._reason != CLOSED:
            self._tell(Lost(self._reason))


def _unheard(news: News) -> None:
    """Ignore news before `start`."""
