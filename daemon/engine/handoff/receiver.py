"""The end that takes blocks in."""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch

from daemon.engine.handoff.layout import HandoffError, layout_of
from daemon.engine.handoff.messages import (
    Broken,
    Bye,
    Cancelled,
    Cleared,
    Done,
    Filled,
    Freed,
    HandoffLink,
    Landed,
    Lost,
    Message,
    Opened,
    Sent,
    Told,
)
from daemon.engine.handoff.movers import Movers
from daemon.engine.handoff.ring import SharedRing
from daemon.engine.kv_cache import PagedKV
from daemon.engine.streams import Stream, WorkEvent
from daemon.wire.columns import Column

Tell = Callable[[Told], None]

CLOSED = "the receiver closed"
DYING_S = 10.0
"""For how long a sender that hung up without a word may take to die."""


@dataclass(slots=True)
class _Incoming:
    """A transfer on its way in."""

    targets: Column  # int32 [n]
    fills: Column  # int32 [n]
    left: int  # parts of blocks that are not here yet
    cleared: WorkEvent  # behind the steps that may still touch the targets
    began_s: float = field(default_factory=time.perf_counter)


class Receiver:
    """Transfers from one sender; `connect_receiver` makes it.

    Target blocks belong to their transfer from before the sender hears of them until it was told
    of, on a thread of the receiver's own: `Done`, and from then on steps may read the blocks and
    `PagedKV.fills` says how many tokens each holds; or `Broken`, and they hold rubbish. `Lost`
    comes at last where the link ends by itself.
    """

    def __init__(
        self,
        link: HandoffLink,
        cache: PagedKV,
        compute: Stream,
        ring: tuple[SharedRing, Movers] | None,
        process: int,
    ) -> None:
        """`ring`: None where the sender writes by itself; `process`: its pidfd, or -1."""
        self._link, self._cache, self._compute = link, cache, compute
        self._layout = layout_of(cache)
        self._ring = ring
        self._process = process
        self._tell: Tell = _unheard
        self._open: dict[int, _Incoming] = {}  # `_hear` adds, `_wait` removes
        self._reason = ""
        self._noting = threading.Lock()
        self._queued: SimpleQueue[tuple[WorkEvent | None, Message] | None] = SimpleQueue()
        self._hearer, self._waiter = (
            threading.Thread(target=work, name=f"handoff-{name}", daemon=True)
            for name, work in (("hear", self._hear), ("wait", self._wait))
        )

    def start(self, tell: Tell) -> None:
        """Begin; `tell` is called on a thread of the receiver's own, and may not close it."""
        self._tell = tell
        self._hearer.start()
        self._waiter.start()

    def close(self) -> None:
        """Break off what is open, end the link, and let go of all memory."""
        if self._hearer.ident is None:
            self.start(_unheard)
        self._end(CLOSED)
        self._waiter.join()
        self._link.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _hear(self) -> None:
        """On a thread: what the sender says; begin what it asks for."""
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
        except HandoffError as error:
            self._note(str(error))
            self._link.send(Bye(self._reason))
            return None

    def _begin(self, message: Message) -> None:
        try:
            self._queued.put(self._begun(message))
        except Exception as error:  # noqa: BLE001 - nobody else sees what happens on this thread
            self._note(f"the receiver failed: {type(error).__name__}: {error}")
            # The sender answers with its own once none of its copies runs.
            self._link.send(Bye(self._reason))

    def _begun(self, message: Message) -> tuple[WorkEvent | None, Message]:
        """Queue what a message asks for; when it is done, and the message."""
        if isinstance(message, Opened):
            return self._opened(message), message
        if isinstance(message, Filled):
            return self._filled(message), message
        if isinstance(message, Sent | Cancelled):
            return None, message
        raise HandoffError(f"the sender sent {type(message).__name__}")

    def _opened(self, message: Opened) -> WorkEvent:
        targets, count = message.targets, self._cache.num_blocks
        if not len(targets) or not 0 <= targets.min() <= targets.max() < count:
            raise HandoffError(f"transfer {message.transfer}: no such blocks in a pool of {count}")
        if message.transfer in self._open or len(message.fills) != len(targets):
            raise HandoffError(f"transfer {message.transfer} cannot be opened so")
        cleared = self._compute.record()
        left = len(targets) * message.num_parts
        self._open[message.transfer] = _Incoming(targets, message.fills, left, cleared)
        return cleared

    def _filled(self, message: Filled) -> WorkEvent | None:
        if self._ring is None:
            raise HandoffError("there is no ring to copy from")
        incoming = self._open.get(message.transfer)
        if incoming is None:
            raise HandoffError(f"transfer {message.transfer} is not open")
        ring, movers = self._ring
        first, end, targets = message.first, message.first + message.count, incoming.targets
        if not 0 <= first < end <= len(targets) or not self._layout.has(message.layer):
            raise HandoffError(f"transfer {message.transfer} has no such part")
        slot = ring.slot(message.slot, message.count * self._layout.size(message.layer))
        spans = self._layout.spans(message.layer)
        return movers.back(spans, targets[first:end], slot, incoming.cleared)

    def _wait(self) -> None:
        """On a thread: wait for copies, and tell of what is whole."""
        try:
            while (queued := self._queued.get()) is not None:
                ended, message = queued
                if ended is not None:
                    ended.synchronize()
                self._ended(message)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(f"the receiver failed: {type(error).__name__}: {error}")
        self._last_words()

    def _ended(self, message: Message) -> None:
        """What a message asked for is done."""
        if isinstance(message, Opened):
            if self._ring is None:
                self._link.send(Cleared(message.transfer))
        elif isinstance(message, Filled):
            self._link.send(Freed(message.slot))
            self._arrived(message.transfer, message.count)
        elif isinstance(message, Sent):
            self._arrived(message.transfer, self._open[message.transfer].left)
        elif isinstance(message, Cancelled) and message.transfer in self._open:
            del self._open[message.transfer]
            self._tell(Broken(message.transfer, "it was cancelled"))

    def _arrived(self, transfer: int, num_parts: int) -> None:
        incoming = self._open[transfer]
        incoming.left -= num_parts
        if not incoming.left:
            self._cache.fills[incoming.targets] = incoming.fills
            del self._open[transfer]
            self._link.send(Landed(transfer))
            self._tell(Done(transfer, time.perf_counter() - incoming.began_s))

    def _note(self, reason: str) -> None:
        """Why the link ends; the first reason counts."""
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
        """All that was begun is done."""
        with contextlib.suppress(Exception):  # a GPU that failed runs no copies either
            if self._ring is not None:
                ring, movers = self._ring
                movers.close()
                ring.close()
        self._link.send(Bye(self._reason))
        self._link.hang_up()
        for transfer in sorted(self._open):
            self._tell(Broken(transfer, self._reason))
        self._open.clear()
        if self._reason != CLOSED:
            self._tell(Lost(self._reason))


def _unheard(told: Told) -> None:
    """Before anyone listens."""
