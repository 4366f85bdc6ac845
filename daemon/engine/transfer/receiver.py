"""The receiving end of a link."""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import torch

from daemon.engine.batch.streams import Stream, WorkEvent
from daemon.engine.kv.pool import PagedKV
from daemon.engine.transfer.faults import LinkFaults, Stage
from daemon.engine.transfer.layout import WHOLE, Layout, TransferError
from daemon.engine.transfer.messages import (
    Broken,
    Bye,
    Cancelled,
    Cleared,
    Declined,
    Done,
    Freed,
    Landed,
    Lost,
    Message,
    News,
    Opened,
    Sent,
    TransferSocket,
)
from daemon.engine.transfer.movers import Movers
from daemon.engine.transfer.ring import SharedRing
from daemon.engine.transfer.rows import Spans
from daemon.engine.transfer.sums import Summed, Summer
from daemon.protocol.ring import Filled
from daemon.protocol.worker import CANCELLED
from daemon.wire.columns import Column

Tell = Callable[[News], None]

CLOSED = "the receiver closed"
DYING_S = 10.0
"""Longest time that a sender that hung up without a message may take to die."""


@dataclass(slots=True)
class _Incoming:
    """A transfer on its way in."""

    targets: Column  # int32 [n]
    fills: Column  # int32 [n]
    num_parts: int  # of each block
    cleared: WorkEvent  # behind the steps that may still touch the targets
    num_right: Column  # int32 [n]: parts of each block that are here as they left
    left: int  # parts of blocks still missing
    began_s: float = field(default_factory=time.perf_counter)

    @property
    def leading(self) -> int:
        """How many of the first blocks are right."""
        wrong = np.flatnonzero(self.num_right < self.num_parts)
        return int(wrong[0]) if len(wrong) else len(self.targets)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was opened."""
        return time.perf_counter() - self.began_s


@dataclass(frozen=True, slots=True)
class _Begun:
    """A message whose copies are queued."""

    message: Message
    ended: WorkEvent | None = None
    summed: Summed | None = None  # of the parts that it brought, where they lie now


class Receiver:
    """Transfers from one sender; `connect_receiver` makes it.

    Target blocks belong to their transfer until its end is reported, on a thread of the receiver's
    own: after `Done` steps may read the blocks that arrived intact, and `PagedKV.fills` says how
    many tokens each holds; after `Broken` only those blocks are valid that it says are right.
    `Lost` comes last where the link ends by itself.
    """

    def __init__(
        self,
        link: TransferSocket,
        layout: Layout,
        cache: PagedKV,
        compute: Stream,
        ring: tuple[SharedRing, Movers] | None,
        process: int,
        summer: Summer,
        faults: LinkFaults | None = None,
    ) -> None:
        """`ring`: None where the sender writes by itself; `process`: its pidfd, or -1."""
        self._link, self._cache, self._compute = link, cache, compute
        self._layout = layout
        self._ring = ring
        self._process = process
        self._summer, self._faults = summer, faults or LinkFaults()
        self._tell: Tell = _unheard
        self._open: dict[int, _Incoming] = {}  # `_hear` adds, `_wait` removes
        self._reason = ""
        self._noting = threading.Lock()
        self._queued: SimpleQueue[_Begun | None] = SimpleQueue()
        self._hearer, self._waiter = (
            threading.Thread(target=work, name=f"transfer-{name}", daemon=True)
            for name, work in (("hear", self._hear), ("wait", self._wait))
        )

    @property
    def direct(self) -> bool:
        """Whether the sender writes into the pool by itself."""
        return self._ring is None

    def start(self, tell: Tell) -> None:
        """Start; `tell` is called on a thread of the receiver's own, and may not close it."""
        self._tell = tell
        self._hearer.start()
        self._waiter.start()

    def close(self) -> None:
        """Break off open transfers, end the link, and free all memory."""
        if self._hearer.ident is None:
            self.start(_unheard)
        self._end(CLOSED)
        self._waiter.join()
        self._link.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _hear(self) -> None:
        """Read the sender's messages on a thread, and begin the copies that they ask for."""
        with torch.inference_mode():
            while (message := self._next()) is not None:
                if isinstance(message, Bye):
                    self._note(message.reason)
                    break
                if not self._reason:
                    self._begin(message)
            else:
                self._await_death()
                self._note("the sender is gone")
        self._queued.put(None)

    def _next(self) -> Message | None:
        try:
            return self._link.receive()
        except TransferError as error:
            self._note(str(error))
            self._link.send(Bye(self._reason))
            return None

    def _begin(self, message: Message) -> None:
        try:
            self._queued.put(self._begun(message))
        except Exception as error:  # noqa: BLE001 - this thread reports its own errors
            self._note(f"the receiver failed: {type(error).__name__}: {error}")
            # The sender answers with its own once none of its copies runs.
            self._link.send(Bye(self._reason))

    def _begun(self, message: Message) -> _Begun:
        """Queue the copies that a message asks for."""
        if isinstance(message, Opened):
            return _Begun(message, self._opened(message))
        if isinstance(message, Filled):
            return self._filled(message)
        if isinstance(message, Sent):
            return self._sent(message)
        if isinstance(message, Cancelled | Declined):
            return _Begun(message)
        raise TransferError(f"the sender sent {type(message).__name__}")

    def _opened(self, message: Opened) -> WorkEvent:
        targets, count = message.targets, self._cache.num_blocks
        if not len(targets) or not 0 <= targets.min() <= targets.max() < count:
            raise TransferError(f"transfer {message.transfer}: no such blocks in a pool of {count}")
        if message.transfer in self._open or len(message.fills) != len(targets):
            raise TransferError(f"transfer {message.transfer} cannot be opened so")
        cleared = self._compute.record()
        parts, num_right = message.num_parts, np.zeros(len(targets), np.int32)
        left = len(targets) * parts
        self._open[message.transfer] = _Incoming(
            targets, message.fills, parts, cleared, num_right, left
        )
        return cleared

    def _filled(self, message: Filled) -> _Begun:
        if self._ring is None:
            raise TransferError("there is no ring to copy from")
        incoming = self._open.get(message.transfer)
        if incoming is None:
            raise TransferError(f"transfer {message.transfer} is not open")
        ring, movers = self._ring
        first, end, targets = message.first, message.first + message.count, incoming.targets
        if not 0 <= first < end <= len(targets) or not self._layout.has(message.layer):
            raise TransferError(f"transfer {message.transfer} has no such part")
        size = message.count * self._layout.size(message.layer)
        if message.size_bytes != size:
            raise TransferError(f"transfer {message.transfer} has a slot of another size")
        slot = ring.slot(message.slot, size)
        spans = self._layout.spans(message.layer)
        ended = movers.back(spans, targets[first:end], slot, incoming.cleared)
        return _Begun(message, ended, self._summed(message, spans, targets[first:end], ended))

    def _sent(self, message: Sent) -> _Begun:
        incoming = self._open.get(message.transfer)
        if incoming is None or self._ring is not None:
            raise TransferError(f"transfer {message.transfer} cannot be sent so")
        spans = self._layout.spans(WHOLE)
        return _Begun(
            message, None, self._summed(message, spans, incoming.targets, incoming.cleared)
        )

    def _summed(
        self, message: Filled | Sent, spans: Spans, blocks: Column, after: WorkEvent
    ) -> Summed | None:
        """Sums of the arrived parts once `after` is reached; None where they are not checked."""
        if not len(message.sums):
            return None
        if len(message.sums) != len(blocks):
            raise TransferError(f"transfer {message.transfer} has not as many sums as blocks")
        return self._summer.of(spans, blocks, after)

    def _wait(self) -> None:
        """Wait for copies on a thread, and report transfers that are complete."""
        try:
            while (queued := self._queued.get()) is not None:
                if queued.ended is not None:
                    queued.ended.synchronize()
                self._ended(queued.message, queued.summed)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(f"the receiver failed: {type(error).__name__}: {error}")
        self._last_words()

    def _ended(self, message: Message, summed: Summed | None) -> None:
        """Handle the end of a message's copies."""
        if isinstance(message, Opened):
            if self._ring is None:
                self._link.send(Cleared(message.transfer))
        elif isinstance(message, Filled):
            self._link.send(Freed(message.slot))
            blocks = slice(message.first, message.first + message.count)
            self._arrived(message, summed, blocks, 1)
        elif isinstance(message, Sent):
            incoming = self._open[message.transfer]
            self._arrived(message, summed, slice(len(incoming.targets)), incoming.num_parts)
        elif isinstance(message, Cancelled) and message.transfer in self._open:
            incoming = self._open[message.transfer]
            self._keep(incoming)
            del self._open[message.transfer]
            why = CANCELLED
            self._tell(Broken(message.transfer, why, incoming.leading, incoming.elapsed_s))
        elif isinstance(message, Declined):
            self._tell(Broken(message.transfer, message.reason))

    def _arrived(
        self, message: Filled | Sent, summed: Summed | None, blocks: slice, num_parts: int
    ) -> None:
        """Note that `num_parts` parts of some blocks of a transfer are in the pool."""
        transfer, incoming = message.transfer, self._open[message.transfer]
        count = len(incoming.targets[blocks])
        right = summed.read() == message.sums if summed is not None else np.ones(count, np.bool_)
        incoming.num_right[blocks] += num_parts * right
        incoming.left -= num_parts * count
        if not incoming.left:
            self._keep(incoming)
            del self._open[transfer]
            self._faults.reach(Stage.LAND, self._link)
            self._link.send(Landed(transfer))
            leading = incoming.leading
            differs = leading < len(incoming.targets)
            self._tell(Done(transfer, incoming.elapsed_s, leading, differs))

    def _keep(self, incoming: _Incoming) -> None:
        """Note how many tokens the valid blocks hold."""
        leading = incoming.leading
        self._cache.fills[incoming.targets[:leading]] = incoming.fills[:leading]

    def _note(self, reason: str) -> None:
        """Note why the link ends; the first reason counts."""
        with self._noting:
            self._reason = self._reason or reason

    def _end(self, reason: str) -> None:
        """Begin nothing more, and wait until the sender has no copy under way."""
        self._note(reason)
        self._link.send(Bye(self._reason))
        self._hearer.join(DYING_S)
        self._link.hang_up()
        self._hearer.join()

    def _await_death(self) -> None:
        """Wait until the sender's process has let go of its GPU: it may be writing until then."""
        if self._ring is None and self._process >= 0:
            ended = select.poll()
            ended.register(self._process, select.POLLIN)
            ended.poll(1e3 * DYING_S)

    def _last_words(self) -> None:
        """Report open transfers once all that was begun is done."""
        with contextlib.suppress(Exception):  # a GPU that failed runs no copies either
            self._summer.close()
            if self._ring is not None:
                ring, movers = self._ring
                movers.close()
                ring.close()
        self._link.send(Bye(self._reason))
        self._link.hang_up()
        for transfer, incoming in sorted(self._open.items()):
            self._tell(Broken(transfer, self._reason, elapsed_s=incoming.elapsed_s))
        self._open.clear()
        if self._reason != CLOSED:
            self._tell(Lost(self._reason))


def _unheard(news: News) -> None:
    """Ignore news before `start`."""
