"""The other ranks of an instance: processes beside its first, for one life of all of them.

Each gets every message that the first gets, and the memory that all of them share. The instance is
ready when all are, and lost with any of them: none outlives the others.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from signal import SIGCONT, SIGUSR1
from socket import MSG_DONTWAIT

import msgspec

from daemon.core.values.snapshot import RankStatus
from daemon.protocol.worker import (
    Compiling,
    Copied,
    Failed,
    FromWorker,
    LinkState,
    Load,
    RankMemory,
    Ready,
    TransferOver,
)
from daemon.supervisor.child import Child
from daemon.supervisor.silence import Silence
from daemon.supervisor.spare import StartedWorker, start_worker
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder

RANK_ERROR = "RankError"
"""The kind of an error that another rank's is the cause of."""


class RankHooks(msgspec.Struct, frozen=True):
    """The callbacks of `OtherRanks`."""

    ready: Callable[[], None]  # all of them
    copied: Callable[[], None]  # one of them has copied further
    compiles: Callable[[Compiling], None]
    stalled: Callable[[str], None]  # one does not load any further
    lost: Callable[[], None]  # one has hung up
    link_state: Callable[[int, LinkState], None]  # of a rank, by its number
    transfer_over: Callable[[int, TransferOver], None]


class _Rank:
    """One process."""

    def __init__(self, number: int, started: StartedWorker, hooks: RankHooks, limit_s: float):
        self.number = number
        self.child = started.child
        self.ready: Ready | None = None
        self.copied_step = 0
        self.error = ""
        self.lost = False
        self.links = started.links
        self._hooks = hooks
        self._limit_s = limit_s
        self._decode = decoder(FromWorker).decode
        self._loading = Silence(self.child, self._stalls)
        self._loading.expect(limit_s)
        self.channel = Channel(started.sock, self._frame, self._hung_up)

    def _frame(self, payload: bytes) -> None:
        message: FromWorker = self._decode(payload)
        match message:
            case Ready():
                self._loading.stop()
                self.ready = message
                self._hooks.ready()
            case Copied():
                self.copied_step = message.step
                self._hooks.copied()
            case LinkState():
                self._hooks.link_state(self.number, message)
            case TransferOver():
                self._hooks.transfer_over(self.number, message)
            case Compiling():
                self._hooks.compiles(message)
            case Failed():
                self.error = message.message
            case _ if self.ready is None:
                self._loading.expect(self._limit_s)

    def _hung_up(self, _error: str) -> None:
        self.lost = True
        self._hooks.lost()

    def _stalls(self) -> None:
        self._hooks.stalled(f"rank {self.number} does not load any further")

    def close(self) -> None:
        """Hang up and watch it no more."""
        self._loading.stop()
        self.channel.close()
        if self.links is not None:
            self.links.close()
            self.links = None


def rank_status(child: Child, load: Load, is_ready: bool) -> RankStatus:
    """A rank's process, as viewers see it."""
    state = "stopped" if child.stopped else "ready" if is_ready else "loading"
    device = load.device if load.device.startswith("cuda") else ""
    return RankStatus(child.pid, state, child.resident_bytes, device)


def sent_beside(links: socket.socket | None, payload: bytes) -> bool:
    """Whether a worker's socket for links took a message, past plans that wait for its steps."""
    try:
        return links is not None and links.send(payload, MSG_DONTWAIT) > 0
    except OSError:  # it is stopped, or the message is too long
        return False


class OtherRanks:
    """All ranks of an instance but the first, from `start` to `end`."""

    def __init__(self, loads: Sequence[Load], hooks: RankHooks, limit_s: float) -> None:
        """`loads`: of each of them. `limit_s`: how long one may load without progress."""
        self._loads = loads
        self._hooks = hooks
        self._limit_s = limit_s
        self._ranks: list[_Rank] = []

    async def start(self, first: StartedWorker, life: int) -> None:
        """Start them, and give memory to all, the `first` included. Raises OSError."""
        found = await asyncio.gather(
            *(start_worker(load.device) for load in self._loads), return_exceptions=True
        )
        started = [each for each in found if not isinstance(each, BaseException)]
        self._ranks = [
            _Rank(number, each, self._hooks, self._limit_s)
            for number, each in enumerate(started, 1)
        ]
        for each in found:
            if isinstance(each, BaseException):
                await asyncio.gather(*self.endings(0.0))
                raise each
        encode = encoder().encode
        memory = os.memfd_create("llmd-ranks", os.MFD_CLOEXEC)
        try:
            for links in filter(None, (first.links, *(each.links for each in started))):
                socket.send_fds(links, [encode(RankMemory())], [memory], MSG_DONTWAIT)
        finally:
            os.close(memory)
        for rank, load in zip(self._ranks, self._loads, strict=True):
            rank.channel.send(encode(msgspec.structs.replace(load, life=life)))

    @property
    def shown(self) -> list[RankStatus]:
        """Each of them, as viewers see it."""
        pairs = zip(self._ranks, self._loads, strict=False)  # fewer while they start
        return [rank_status(rank.child, load, rank.ready is not None) for rank, load in pairs]

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped one of them."""
        return any(rank.child.stopped for rank in self._ranks)

    @property
    def copied_step(self) -> int:
        """The step up to which all of them have copied."""
        return min(rank.copied_step for rank in self._ranks)

    def starved_s(self) -> float:
        """Time for which their threads have waited for a processor, together."""
        return sum(rank.child.starved_s() for rank in self._ranks)

    def send(self, payload: bytes) -> None:
        """Send each of them a message."""
        for rank in self._ranks:
            rank.channel.send(payload)

    def start_transfer(self, payload: bytes, at_once: bool) -> None:
        """Send each of them the start of a transfer; see `WorkerProcess`."""
        for rank in self._ranks:
            if not (at_once and sent_beside(rank.links, payload)):
                rank.channel.send(payload)

    def links_of(self, rank: int) -> socket.socket | None:
        """The socket over which a rank gets its links."""
        return next((each.links for each in self._ranks if each.number == rank), None)

    def with_all(self, ready: Ready) -> Ready | None:
        """The readiness of the whole instance, whose memory is that of all; None: not yet."""
        readies = [rank.ready for rank in self._ranks if rank.ready is not None]
        if len(readies) < len(self._ranks):
            return None
        readies.append(ready)
        return msgspec.structs.replace(
            ready,
            block_bytes=sum(each.block_bytes for each in readies),
            weight_bytes=sum(each.weight_bytes for each in readies),
            host_block_bytes=sum(each.host_block_bytes for each in readies),
        )

    def show_stacks(self) -> None:
        """Have each write its stacks to stderr."""
        for rank in self._ranks:
            rank.child.signal(SIGUSR1)
            rank.child.signal(SIGCONT)

    def hang_up(self) -> None:
        """Take nothing more from them."""
        for rank in self._ranks:
            rank.close()

    def cause(self, own: str) -> str:
        """The error of a lost instance, if possible one that is not about another rank; `own`: the
        first rank's.
        """
        errors = [own, *(f"rank {r.number}: {r.error}" for r in self._ranks if r.error)]
        causes = [error for error in errors if error and RANK_ERROR not in error]
        gone = [f"rank {rank.number} is lost" for rank in self._ranks if rank.lost]
        return next(iter([*causes, *gone, *filter(None, errors)]), "")

    def lost_one(self) -> Child | None:
        """The process that hung up, if one did."""
        return next((rank.child for rank in self._ranks if rank.lost), None)

    def endings(self, grace_s: float) -> list[Coroutine[None, None, int]]:
        """The ends of them all, to be awaited at once: their exit statuses."""
        self.hang_up()
        return [rank.child.end(grace_s, None) for rank in self._ranks]
