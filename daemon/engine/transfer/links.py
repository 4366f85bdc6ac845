"""A worker's links to other workers: they come over a socket of their own, beside the steps.

The thread that computes orders transfers, and waits for nothing. Transfers that need not wait for a
step come over the socket too, so that they do not wait until that thread is free. A transfer that
cannot start is answered at once: a lost link is not the worker's fault.
"""

import logging
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from daemon.engine.transfer.connect import EndPools
from daemon.engine.transfer.faults import LinkFaults
from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.peer import LinkEnd, LinkPeer
from daemon.engine.transfer.sender import Sender
from daemon.protocol.worker import (
    CancelTransfer,
    EndLink,
    FromWorker,
    NewLink,
    StartTransfer,
    TransferOver,
)
from daemon.wire.columns import Int32, decoder
from daemon.wire.faults import Faults

if TYPE_CHECKING:
    from daemon.engine.step.step import Engine

log = logging.getLogger(__name__)

NEWS_BYTES = 1 << 20
"""Buffer size, larger than any packet: the socket takes none of the size of its buffer."""


class WorkerLinks:
    """All links of a worker. The thread that computes calls the public methods; a thread of its own
    orders transfers that need not wait for steps.
    """

    def __init__(
        self, sock: socket.socket | None, say: Callable[[FromWorker], None], faults: Faults
    ) -> None:
        """`sock`: where links come from, if they come; `say` is called on many threads."""
        self._sock, self._say = sock, say
        self._faults = LinkFaults(faults)
        self._engine: Engine | None = None
        self._ways: dict[LinkEnd, LinkPeer] = {}
        self._layered: list[Sender] = []  # which the next step tells of its layers

    def begin(self, engine: "Engine") -> None:
        """Begin once the model is loaded: join links that come, and those that came already."""
        self._engine = engine
        if self._sock is not None:
            threading.Thread(target=self._hear, name="links", daemon=True).start()

    def take(self, order: StartTransfer | CancelTransfer) -> None:
        """Begin a transfer, at once or behind all steps so far, or end it early."""
        if isinstance(order, CancelTransfer):
            for way in list(self._ways.values()):
                if way.sender is not None:
                    way.sender.cancel(order.transfer)
            return
        # A rank of which the peer needs no part has no link there; its answer counts for nothing.
        ends = [end for end in list(self._ways) if end[:2] == (order.peer, True)]
        for end in ends or [LinkEnd(order.peer, True)]:
            self._send_over(end, order)

    def after_layer(self, layer: int) -> None:
        """Note that the step has launched the writes of a layer's keys and values."""
        for sender in self._layered:
            sender.after_layer(layer)

    def after_step(self) -> None:
        """Note that a step is launched."""
        for sender in self._layered:
            sender.after_step()
        self._layered.clear()

    def _send_over(self, end: LinkEnd, order: StartTransfer) -> None:
        """Send a rank of the peer its part, or say that it cannot be."""
        way = self._ways.get(end)
        sender = way.sender_of(order.link) if way is not None else None
        try:
            if sender is None:
                raise TransferError("there is no such link to that worker")
            self._send(sender, order)
        except TransferError as error:
            self._say(TransferOver(order.transfer, 0, 0.0, str(error), end.peer_rank))
        except ValueError as error:
            log.error("not answered, as its number is in use: %s", error)

    def _send(self, sender: Sender, order: StartTransfer) -> None:
        """Start a transfer. Raises TransferError on an ended link, ValueError if it is open."""
        assert self._engine is not None, "it is loaded"
        try:
            fills = _fills(order, self._engine.cache.block_size)
            if order.from_host and order.layered:
                raise ValueError("no step computes what lies in the host pool")
            if order.from_host:
                swap = self._engine.swap
                if swap is None:
                    raise ValueError("there is no host pool")
                after = swap.written(order.blocks)
                sender.send_host(order.transfer, order.blocks, order.targets, fills, after)
            elif order.layered:
                sender.begin_layers(order.transfer, order.blocks, order.targets, fills)
                if sender not in self._layered:
                    self._layered.append(sender)
            else:
                columns = order.blocks, order.targets, fills
                sender.send(order.transfer, *columns, computed=order.at_once)
        except ValueError as error:
            log.error("transfer %d cannot be: %s", order.transfer, error)
            sender.refuse(order.transfer, str(error))

    def _hear(self) -> None:
        """Take links and orders as they come, on a thread."""
        assert self._engine is not None and self._sock is not None, "it has begun"
        swap, cache = self._engine.swap, self._engine.cache
        here = EndPools(
            cache,
            swap.pool if swap is not None else None,
            self._engine.stream,
            self._engine.backend.by_torch,
            self._faults,
        )
        decode = decoder(NewLink | EndLink | StartTransfer).decode
        while True:
            news, fds, _flags, _address = socket.recv_fds(self._sock, NEWS_BYTES, 1)
            if not news:
                return
            message: NewLink | EndLink | StartTransfer = decode(news)
            if isinstance(message, StartTransfer):
                self.take(message)
                continue
            if isinstance(message, EndLink):
                for end, way in self._ways.items():
                    if end[:2] == (message.peer, message.sends):
                        way.end(message.link)
                continue
            end = LinkEnd(message.peer, message.sends, message.peer_rank)
            if end not in self._ways:
                self._ways[end] = LinkPeer(end, here, self._say)
            self._ways[end].join(message.link, socket.socket(fileno=fds[0]), message.part)


def _fills(order: StartTransfer, block_size: int) -> Int32:
    """Tokens written of each block. Raises ValueError where there are not as many blocks."""
    count, num_last = len(order.blocks), order.num_groups
    last, rest = divmod(order.num_tokens - (count - num_last) * block_size, num_last)
    if count < num_last or rest or not 0 < last <= block_size:
        raise ValueError(f"{count} blocks do not hold {order.num_tokens} tokens")
    fills = np.full(count, block_size, np.int32)
    fills[-num_last:] = last
    return fills
