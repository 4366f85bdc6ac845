"""One instance's worker process: started, loaded, watched, started again."""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from signal import SIGCONT, SIGKILL, SIGUSR1
from socket import MSG_DONTWAIT

import msgspec

from daemon.core.values.snapshot import RankStatus
from daemon.protocol.worker import (
    CancelTransfer,
    Compiling,
    Copied,
    EndLink,
    Exited,
    ExpertsUsed,
    Failed,
    Fallback,
    FromWorker,
    LeaveSpare,
    LinkState,
    Load,
    Loading,
    NewLink,
    NodeDoor,
    OnNode,
    OperatorTimes,
    Plan,
    Ready,
    Reply,
    Shutdown,
    StagesWorked,
    StartTransfer,
    TimeOperators,
    TransferOver,
)
from daemon.supervisor.child import Child, ChildKeeper
from daemon.supervisor.early import EarlyWorker
from daemon.supervisor.patience import LOOK_S
from daemon.supervisor.proxy import ClusterOrder, start_proxy
from daemon.supervisor.ranks import OtherRanks, RankHooks, rank_status, sent_beside
from daemon.supervisor.restarts import Restarts
from daemon.supervisor.silence import Silence
from daemon.supervisor.spare import HEARS_S, Spare, StartedWorker, start_worker
from daemon.supervisor.step_watch import StepWatch
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder
from daemon.wire.pulse import Alive, Ping

log = logging.getLogger(__name__)

END_GRACE_S = 5.0
LOAD_STALL_S = 300.0
"""Longest time without progress while a worker loads: one stage of a large model on a slow machine
takes a minute or two.
"""
STACKS_S = 0.5
"""Time for a hanging worker to write its stacks."""
UNPLACED = "?"
"""The node of a worker that Ray has not placed yet."""


class WorkerHooks(msgspec.Struct, frozen=True):
    """The callbacks of a `WorkerProcess`; each takes the instance's index first, and those of links
    the rank.

    `lost` also receives whether the worker's computation may be to blame: not where it was killed
    from outside. It is called before `hopeless`, too.
    """

    loading: Callable[[int, Loading], None]
    ready: Callable[[int, Ready], None]
    reply: Callable[[int, Reply], None]
    lost: Callable[[int, bool], None]
    hopeless: Callable[[int, str], None]
    copied: Callable[[int, Copied], None] = lambda _instance, _copied: None
    fallback: Callable[[int, Fallback], None] = lambda _instance, _fallback: None
    experts: Callable[[int, ExpertsUsed], None] = lambda _instance, _used: None
    stages: Callable[[int, StagesWorked], None] = lambda _instance, _worked: None
    link_state: Callable[[int, int, LinkState], None] = lambda _instance, _rank, _state: None
    transfer_over: Callable[[int, int, TransferOver], None] = lambda _instance, _rank, _over: None
    operators: Callable[[int, OperatorTimes], None] = lambda _instance, _times: None


class WorkerProcess(ChildKeeper):
    """Keeps one worker running until `close`.

    A worker that fails while loading is hopeless, unless it was stopped, and so is one that ends
    more than `restarts` times in a minute. One that hangs in a step or while loading has to write
    its stacks to stderr, and is killed. The spare, if there is one, takes the place of a worker
    that died.
    """

    def __init__(
        self,
        instance: int,
        name: str,
        load: Load,
        hooks: WorkerHooks,
        restarts: int = 5,
        spare: Spare | None = None,
        early: EarlyWorker | None = None,
        other_loads: Sequence[Load] = (),
        cluster: ClusterOrder | None = None,
    ) -> None:
        """`other_loads`: of the instance's further ranks, where it has several. `cluster`: the one
        whose Ray places the worker.
        """
        super().__init__()
        self.instance = instance
        self.name = name
        self._load = load
        self._other_loads = other_loads
        self._others: OtherRanks | None = None
        self._own_ready: Ready | None = None  # this rank's, until all are ready
        self._copies: deque[Copied] = deque()  # until the other ranks have copied as far
        self._copying: Silence | None = None  # of those ranks
        self._hooks = hooks
        self._encode = encoder().encode
        self._decode = decoder(FromWorker).decode
        self._channel: Channel | None = None
        self._links: socket.socket | None = None  # the socket over which the worker gets its links
        self._restarts = Restarts(restarts)
        self._spare = spare
        self._early = early
        self._cluster = cluster
        self._node = "" if cluster is None else UNPLACED
        self.door: NodeDoor | None = None  # of its host there
        self._ended: int | None = None  # exit status of the worker that Ray placed
        self._lives = 0
        self._watch = StepWatch()
        self._timer: asyncio.TimerHandle | None = None  # the next look at the oldest step
        self._progress: Silence | None = None  # of this process's loading
        self._stalled = ""  # the error if loading comes no further
        self._hangs = False
        # Stopped while it loaded, its links hang, or its node is lost: no step is to blame.
        self._stopped = False
        self._ready = False  # this process can compute
        self._served = False  # an earlier one or this one could
        self._error = ""
        self._hung_up = asyncio.Event()

    async def run(self) -> None:
        """Start it, and again whenever it dies, until closed or hopeless."""
        while await self._live_once():
            self._lives += 1

    async def _live_once(self) -> bool:
        """Run one process from its start to its death; return whether another should follow."""
        started = await self._start()
        if started is None:
            return False
        first, hears_s = started
        child, sock, self._links = first
        self._ready = self._hangs = self._stopped = False
        self._ended = None
        self._error = ""
        self._hung_up = asyncio.Event()
        self._channel = Channel(sock, self._frame, self._closed)
        self._progress = Silence(child, lambda: self._loading_hangs(self._stalled))
        self._copying = Silence(child, self._copying_hangs, self._starved_s)
        self._await_progress("imports", hears_s)
        self._channel.send(self._encode(Ping()))
        if self._spare is not None and self._spare.asks(first, self._load.device):
            self._channel.send(self._encode(LeaveSpare()))
        if self._other_loads:
            await self._start_others(first)
        self._channel.send(self._encode(msgspec.structs.replace(self._load, life=self._lives)))
        status = await self._last_words(child)
        self._lose()
        if self._cluster is not None:
            status = self._status_there()
        if self._closing.is_set():
            return False
        why = self._error or f"exit status {status}"
        log.error("worker %s (pid %d) died: %s", self.name, child.pid, why)
        blamed = self._hangs or status not in (0, -SIGKILL)
        self._hooks.lost(self.instance, blamed and not self._stopped)
        if (self._served or self._stopped) and self._restarts.allow(time.monotonic()):
            return True
        self._hooks.hopeless(self.instance, f"worker {self.name}: {why}")
        return False

    def _status_there(self) -> int:
        """The exit status of the worker that Ray placed. Where its node was lost, or its proxy, no
        step is to blame, and another may load.
        """
        self._node, self.door = UNPLACED, None
        if self._ended is not None:
            return self._ended
        self._stopped = self._stopped or not self._hangs
        return -SIGKILL

    async def _start_others(self, first: StartedWorker) -> None:
        """Start the other ranks; without them this process is lost, too."""
        self._own_ready = None
        self._copies.clear()
        hooks = RankHooks(
            ready=self._all_ready,
            copied=self._all_copied,
            compiles=self._compiles,
            stalled=self._loading_hangs,
            lost=self._hung_up.set,
            link_state=lambda rank, state: self._hooks.link_state(self.instance, rank, state),
            transfer_over=lambda rank, over: self._hooks.transfer_over(self.instance, rank, over),
        )
        others = self._others = OtherRanks(self._other_loads, hooks, LOAD_STALL_S)
        try:
            await others.start(first, self._lives)
        except OSError as error:
            self._error = f"its other ranks do not start: {error}"
            self._hung_up.set()
        if self._closing.is_set():  # `close` came meanwhile, and could not end them
            await asyncio.gather(*others.endings(0.0))

    async def _start(self) -> tuple[StartedWorker, float] | None:
        """Start a process; return it, and how long it may be silent at first.

        None if `close` came meanwhile and could not end it.
        """
        if self._cluster is not None:
            return await self._start_proxy(self._cluster)
        early = self._early.take(self._load.device) if self._early is not None else None
        spare = self._spare.take() if self._spare is not None else None
        if spare is not None:
            log.info("worker %s: the spare (pid %d) takes its place", self.name, spare.child.pid)
        # A spare has done its imports; but it may have been stopped since its last ping.
        hears_s = LOAD_STALL_S if spare is None else HEARS_S
        started = spare or early or await start_worker(self._load.device)
        if await self._kept(started.child, started.sock):
            return started, hears_s
        started.hang_up()
        return None

    async def _start_proxy(self, order: ClusterOrder) -> tuple[StartedWorker, float] | None:
        started = await start_proxy(order, self._load.device)
        if await self._kept(started.child, started.sock):
            return started, LOAD_STALL_S
        return None

    def send(self, plan: Plan) -> None:
        """Send it a plan; a dead worker's plans are computed again by its successor."""
        if self._channel is not None:
            self._send(self._encode(plan))
            self._watch.sent(time.monotonic(), plan.batch.num_tokens)
            if self._timer is None:
                self._look()

    def _send(self, payload: bytes) -> None:
        """Send all ranks a message."""
        if self._channel is not None:
            self._channel.send(payload)
        if self._others is not None:
            self._others.send(payload)

    def time_operators(self, order: TimeOperators) -> None:
        """Have it time operators alone; nobody watches how long that takes."""
        if self._channel is not None:
            self._send(self._encode(order))

    def start_transfer(self, order: StartTransfer) -> None:
        """Have all ranks start a transfer to another's: at once, or behind all plans so far."""
        payload = self._encode(order)
        if self._channel is not None and not (order.at_once and sent_beside(self._links, payload)):
            self._channel.send(payload)
        if self._others is not None:
            self._others.start_transfer(payload, order.at_once)

    def cancel_transfer(self, transfer: int) -> None:
        """Have it send no more of a transfer."""
        self._send(self._encode(CancelTransfer(transfer)))

    def new_link(self, message: NewLink, fd: int | None, rank: int = 0) -> None:
        """Send a rank one end of a link; the caller keeps its own descriptor. None: it goes to
        another node, and the worker's host makes it.

        If the worker takes no more of them it has no such link, and its peer will say so.
        """
        if fd is None:
            self._send(self._encode(message))
        elif (links := self._links_of(rank)) is not None:
            payload = self._encode(message)
            try:
                socket.send_fds(links, [payload], [fd], MSG_DONTWAIT)
            except OSError as error:
                log.warning("worker %s takes no link: %s", self.name, error)

    def end_link(self, message: EndLink, rank: int) -> None:
        """Have a rank close a link. One that takes no message hangs, as its instance does then."""
        payload = self._encode(message)
        if self._cluster is not None:
            self._send(payload)  # its host takes it past the plans
        else:
            sent_beside(self._links_of(rank), payload)

    def _links_of(self, rank: int) -> socket.socket | None:
        if rank == 0:
            return self._links
        return self._others.links_of(rank) if self._others is not None else None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        others = self._others is not None and self._others.is_stopped
        return others or (self._child is not None and self._child.stopped)

    @property
    def ranks(self) -> tuple[RankStatus, ...]:
        """The processes of an instance of ranks, the first of them first; none of one process."""
        if self._others is None or self._child is None or not self._child.alive:
            return ()
        return rank_status(
            self._child, self._load, self._own_ready is not None
        ), *self._others.shown

    @property
    def processes(self) -> tuple[str, tuple[RankStatus, ...]]:
        """The node on which Ray placed it, and its ranks, as viewers see them."""
        return self._node, self.ranks

    def give_up(self, why: str) -> None:
        """End it like a hanging worker, though no step is to blame."""
        if self._ready and not self._hangs:
            self._stopped = True
            self._end_hanging(why)

    async def close(self) -> int:
        """Let it finish its step and exit, or kill it; return its exit status, 0 if
        there is none.
        """
        self._closing.set()
        self._send(self._encode(Shutdown()))
        if self._child is None:
            return 0
        # While it loads there is no step to finish, and it reads no messages; if a rank is stopped
        # none of them finishes its step.
        grace_s = END_GRACE_S if self._ready and not self.is_stopped else 0.0
        endings = [self._child.end(grace_s, ask=None)]
        if self._others is not None:
            endings += self._others.endings(grace_s)
        status, *_ = await asyncio.gather(*endings)
        return status

    def _frame(self, payload: bytes) -> None:
        message: FromWorker = self._decode(payload)
        match message:
            case Reply():
                self._watch.answered(time.monotonic())
                self._hooks.reply(self.instance, message)
            case Copied():
                self._copies.append(message)
                self._all_copied()
            case LinkState():
                self._hooks.link_state(self.instance, 0, message)
            case TransferOver():
                self._hooks.transfer_over(self.instance, 0, message)
            case OperatorTimes():
                self._hooks.operators(self.instance, message)
            case Fallback():
                self._hooks.fallback(self.instance, message)
            case Compiling():
                self._compiles(message)
            case ExpertsUsed():
                self._hooks.experts(self.instance, message)
            case StagesWorked():
                self._hooks.stages(self.instance, message)
            case Alive():
                self._await_progress("start", LOAD_STALL_S)
            case Loading():
                self._await_progress(message.stage, LOAD_STALL_S)
                self._hooks.loading(self.instance, message)
            case Ready():
                self._stop_watching()
                self._own_ready = message
                self._all_ready()
            case Failed():
                self._error = message.message
            case OnNode():
                self._node, self.door = message.node, message.door
                log.info("worker %s: Ray placed it on %s", self.name, self._node)
            case Exited():
                self._ended = message.status

    def _all_ready(self) -> None:
        """The instance is ready, if all of its ranks are."""
        ready = self._own_ready
        if ready is not None and self._others is not None:
            ready = self._others.with_all(ready)
        if ready is not None and not self._ready:
            self._ready = self._served = True
            self._watch = StepWatch(ready.step_s, ready.token_s)
            self._hooks.ready(self.instance, ready)

    def _all_copied(self) -> None:
        """Pass on the copies that all ranks have done."""
        others = self._others
        came_further = False
        while self._copies and (others is None or self._copies[0].step <= others.copied_step):
            self._hooks.copied(self.instance, self._copies.popleft())
            came_further = True
        # No step in flight may wait for the rest: the first rank has answered it.
        if self._copying is not None and not self._copies:
            self._copying.stop()
        elif self._copying is not None and (came_further or not self._copying.expecting):
            self._copying.expect(self._watch.limit_s)

    def _copying_hangs(self) -> None:
        self._end_hanging(f"a rank does not copy within {self._watch.limit_s:.1f} s")

    def _compiles(self, message: Compiling) -> None:
        self._watch.compiles(time.monotonic())
        log.info("worker %s compiles while it serves (%s)", self.name, message.compiler)

    async def _last_words(self, child: Child) -> int:
        """Wait until it has hung up and its messages are read, then for its exit status."""
        await self._hung_up.wait()
        grace_s = STACKS_S if self._hangs else END_GRACE_S
        others = self._others
        if others is None or self._closing.is_set():
            return await child.end(grace_s, ask=None)
        self._error = others.cause(self._error)
        lost = others.lost_one()
        if lost is None:  # the first rank itself
            status = await child.end(grace_s, ask=None)
        else:  # the first may be waiting for it
            status = await lost.end(grace_s, ask=None)
            await child.end(STACKS_S if self._hangs else 0.0, ask=None)
        await asyncio.gather(*others.endings(0.0))
        self._others = None  # not before: `close` ends what is left
        return status

    def _await_progress(self, stage: str, limit_s: float) -> None:
        """Restart the clock of a loading worker's progress."""
        self._stalled = f"no progress of loading in {limit_s:g} s, after its stage {stage!r}"
        if self._progress is not None:
            self._progress.expect(limit_s)

    def _loading_hangs(self, why: str) -> None:
        """End a worker that hangs while loading; if it was stopped it has not failed: another may
        load.
        """
        self._stopped = self.is_stopped
        self._end_hanging("stopped while it loaded" if self._stopped else why)

    def _look(self) -> None:
        """See whether the oldest step hangs, now and again while one is in flight."""
        self._timer = None
        if self._child is None or not self._watch.waiting:
            return
        if self._watch.hangs(time.monotonic(), self._starved_s):
            self._end_hanging(f"no answer to a step within {self._watch.limit_s:.1f} s")
        else:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _starved_s(self) -> float:
        """Time for which the threads of all ranks have waited for a processor."""
        own_s = self._child.starved_s() if self._child is not None else 0.0
        return own_s + (self._others.starved_s() if self._others is not None else 0.0)

    def _end_hanging(self, why: str) -> None:
        """End a hanging worker; its late answers are dropped, and a stopped one is woken to log its
        stacks.
        """
        self._hangs = True
        self._error = why
        log.error("worker %s (pid %d) hangs; where it is:", self.name, self.pid)
        self._lose()
        if self._child is not None:
            self._child.signal(SIGUSR1)
            self._child.signal(SIGCONT)
        if self._others is not None:
            self._others.show_stacks()
        self._hung_up.set()

    def _closed(self, error: str) -> None:
        self._hung_up.set()

    def _stop_watching(self) -> None:
        for silence in (self._progress, self._copying):
            if silence is not None:
                silence.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lose(self) -> None:
        self._stop_watching()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._links is not None:
            self._links.close()
            self._links = None
        if self._others is not None:
            self._others.hang_up()
