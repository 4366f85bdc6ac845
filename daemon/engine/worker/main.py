"""An engine worker process: `python -m daemon.engine.worker.main --fd N --device KIND [--spare]`.

It inherits one end of a socketpair and imports all that it will need; a spare does so with idle
processor time and then waits. It takes a `Load`, answers `Ready` after a real first step, then one
`Reply` for each `Plan`, and `Copied` whenever swap copies are done (rank 0 only). Over another
inherited socket (`--links-fd N`) come links to other workers, whose KV pools it shares blocks with
(`daemon.engine.transfer.links`). It exits 0 on `Shutdown` or when its daemon is gone, and 1 after
`Failed`.
"""

import argparse
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, cast

from daemon.base import logs
from daemon.base.garbage import settle
from daemon.config.paths import default_cache
from daemon.engine.process import (
    bound_caches,
    give_back,
    keep_compiled,
    share_cores,
    stay_offline,
)
from daemon.engine.worker.answers import AnswersBeside, AnswersHere
from daemon.engine.worker.compile_watch import CompileWatch
from daemon.engine.worker.preload import KINDS, preload, preload_idly
from daemon.models.shape import ModelError
from daemon.protocol.worker import (
    SPARE_PID,
    CancelTransfer,
    Compiling,
    Copied,
    ExpertsUsed,
    Failed,
    Fallback,
    FromWorker,
    LeaveSpare,
    LinkState,
    Load,
    Loading,
    Plan,
    Ready,
    Reply,
    StartTransfer,
    TimeOperators,
    ToWorker,
    TransferOver,
)
from daemon.state.batch import MOST_BESIDE_DRAFTS
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder, encoder
from daemon.wire.faults import Faults, faults
from daemon.wire.parent import die_with_parent, fork_away, is_child_of_maker
from daemon.wire.pulse import Alive, Ping

if TYPE_CHECKING:
    from daemon.engine.layers.ranks import Ranks
    from daemon.engine.layers.stages import StageLinks
    from daemon.engine.step.step import Engine
    from daemon.engine.transfer.links import WorkerLinks
    from daemon.engine.worker.faults import FaultyEngine

log = logging.getLogger(__name__)

_SWITCH_S = 0.0005
"""The longest that one thread computes while another has an answer to send."""
_OF_EACH_RANK = Copied | Compiling | LinkState | TransferOver
"""Messages about what each rank does for its own part; others are the first rank's to send."""
_ORDERS = Plan | TimeOperators | StartTransfer | CancelTransfer
RANK_LATE_S = 60.0
"""Longest time for which a rank waits for another in a step."""
_THREADS = {"MainThread", "log"}
"""Those of a worker that has done its imports."""
_TELL_S = 1.0
"""Time between two reports of where experts were computed, or when stages did."""
_IDLE_S = 0.02
"""Time without a message after which a worker prepares things for later steps."""
_REST_S = 2.0
"""Time without a message after which a worker gives back memory: a few ms, of nobody's step."""


class EngineWorker:
    """The worker's loop: messages in, messages out; the engine interprets them."""

    def __init__(self, channel: BlockingChannel, links: socket.socket | None = None) -> None:
        """`links`: where links to other workers come from."""
        self._channel = channel
        self._links_sock = links
        self._rank = 0
        self._ranks: Ranks | None = None
        self._stages: StageLinks | None = None  # these, where they are pipeline stages
        self._faults = Faults()
        self._sending = threading.Lock()  # a frame is whole, whichever thread sends it
        self._unprepared = True
        self._tells_at_s = 0.0
        self._has_worked = True  # since it gave back what it does not need
        self._encoder = encoder()
        self._decoder = decoder(ToWorker)

    def serve(self, kind: str, spare: bool) -> int:
        """Import, load, then answer plans until `Shutdown`; the process's exit status."""
        try:
            self._import(kind, spare)
            while isinstance(message := self._receive(), Ping | LeaveSpare):
                if isinstance(message, Ping):
                    self._send(Alive())
                else:
                    self._leave_spare()
            if not isinstance(message, Load):
                return 0
            self._rank = message.rank
            self._faults = faults("worker.", message.life)
            self._serve(message)
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except Exception as error:  # noqa: BLE001 - any error is reported
            self._fail(error)
            return 1
        finally:
            if self._ranks is not None:  # behind the error: theirs will be that this rank has left
                self._ranks.close()
        return 0

    def _import(self, kind: str, spare: bool) -> None:
        """All that computing on this kind of device needs; a spare is in no hurry."""
        if spare:
            preload_idly(kind)
            self._send(Loading("spare", 0.0))
        else:
            self._send(Loading("imports", 0.0))
            preload(kind)

    def _leave_spare(self) -> None:
        """Fork a spare, which goes on here with sockets of its own."""
        if self._links_sock is None:
            return
        _, (fd, links_fd), _, _ = socket.recv_fds(self._links_sock, 1, 2)
        sockets = socket.socket(fileno=fd), socket.socket(fileno=links_fd)
        gc.freeze()  # what both have is shared until one of them writes it
        # Another thread might hold a lock, which none in a fork would open.
        alone = {thread.name for thread in threading.enumerate()} <= _THREADS
        if alone and is_child_of_maker(fd) and _forked(fd):
            self._channel.close()
            self._links_sock.close()
            self._channel, self._links_sock = BlockingChannel(sockets[0]), sockets[1]
            logs.set_up("worker")
            self._links_sock.send(SPARE_PID.pack(os.getpid()))
            self._send(Loading("spare", 0.0))
            return
        for sock in sockets:
            sock.close()

    def _serve(self, load: Load) -> None:
        from daemon.engine.transfer.links import WorkerLinks

        ranks = self._meet(load) if load.world_size > 1 else None
        links = WorkerLinks(self._links_sock, self._tell, self._faults)
        self._ranks = ranks
        self._stages = cast("StageLinks", ranks) if load.stage_layers else None
        engine = self._load(load, links, ranks)
        self._serve_plans(engine, links, ranks)

    def _meet(self, load: Load) -> "Ranks":
        """This rank's end of what it does together with the others."""
        from daemon.engine.ranks.meet import meet

        if self._links_sock is None:
            raise ValueError("a rank of several needs a socket for links")
        return meet(self._links_sock, load)

    def _serve_plans(self, engine: "Engine", links: "WorkerLinks", ranks: "Ranks | None") -> None:
        if ranks is not None:
            ranks.deadline_s = RANK_LATE_S
        CompileWatch(self._compiles).start()
        links.begin(engine)
        self._answer_plans(engine, self._faulty(engine), links)

    def _load(self, load: Load, links: "WorkerLinks", ranks: "Ranks | None") -> "Engine":
        import torch

        from daemon.engine.batch.multi_step import MOST_TIMES
        from daemon.engine.worker.start import start
        from daemon.engine.worker.warm_up import measure_copy

        with torch.inference_mode():
            engine, times = start(
                load,
                lambda stage, done: self._send(Loading(stage, done)),
                self._fallen,
                links.after_layer,
                ranks,
            )
            swap, copy_block_s = engine.swap, 0.0
            if swap is not None:
                copy_block_s = measure_copy(swap)
                swap.listen(self._tell, self._ended)
        settle()  # what was loaded lives as long as the process
        give_back()
        self._send(
            Ready(
                num_blocks=engine.cache.num_blocks,
                block_bytes=engine.cache.block_bytes,
                windows=engine.cache.windows,
                kinds=engine.cache.kinds,
                state_pages=engine.cache.state_pages,
                weight_bytes=engine.model.weight_bytes,
                step_s=times.step_s,
                num_host_blocks=swap.pool.num_blocks if swap else 0,
                host_block_bytes=swap.pool.block_bytes if swap else 0,
                copy_block_s=copy_block_s,
                token_s=times.token_s,
                forward_tokens=times.forward_tokens,
                row_s=times.row_s,
                same_until=engine.model.same_until(MOST_BESIDE_DRAFTS),
                most_times=1 if engine.cache.blocks.is_cuda or ranks is not None else MOST_TIMES,
            )
        )
        return engine

    def _faulty(self, engine: "Engine") -> "Engine | FaultyEngine":
        """The engine that computes plans, with injected faults if any are configured."""
        if not self._faults:
            return engine
        from daemon.engine.worker.faults import FaultyEngine

        return FaultyEngine(engine, self._faults)

    def _answer_plans(
        self, engine: "Engine", steps: "Engine | FaultyEngine", links: "WorkerLinks"
    ) -> None:
        import torch

        from daemon.engine.step.operators import time_operators

        beside = engine.cache.blocks.is_cuda
        answers = AnswersBeside(self._answer, self._ended) if beside else AnswersHere(self._answer)
        with torch.inference_mode():
            while isinstance(message := self._next(engine, answers), _ORDERS):
                self._has_worked = True
                if isinstance(message, Plan):
                    begun = steps.begin(message, time.perf_counter())
                    links.after_step()
                    answers.take(begun)
                    self._tell_experts(engine)
                    self._tell_stages()
                elif isinstance(message, TimeOperators):
                    self._tell(time_operators(engine, message))
                else:
                    links.take(message)
        answers.close()

    def _next(self, engine: "Engine", answers: AnswersHere) -> ToWorker | None:
        """The next message. While there is nothing to do, things for later steps are prepared, and
        later memory that steps have freed goes back to the kernel.
        """
        while self._unprepared and not self._channel.wait(_IDLE_S):
            if answers.idle:
                self._unprepared = engine.prepare()
                self._tell_experts(engine, after_step=False)
        if self._has_worked and not self._channel.wait(_REST_S):
            give_back()
            self._has_worked = False
        return self._receive()

    def _answer(self, reply: Reply) -> None:
        if self._rank == 0:
            self._send(reply)

    def _tell(self, message: FromWorker) -> None:
        """Send a message, on any thread: of links, or of swap copies."""
        if self._rank == 0 or isinstance(message, _OF_EACH_RANK):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `serve` will see it
                self._send(message)

    def _tell_experts(self, engine: "Engine", *, after_step: bool = True) -> None:
        """Tell now and then where experts were computed. Behind a step they may be exchanged."""
        experts = engine.model.experts
        if not experts:
            return
        self._unprepared = self._unprepared or after_step
        now_s = time.monotonic()
        if now_s < self._tells_at_s and (after_step or self._unprepared):
            return
        self._tells_at_s = now_s + _TELL_S
        use = experts.use
        self._tell(
            ExpertsUsed(
                on_device=experts.num_on_device,
                in_ram=experts.num_in_ram,
                bytes_in_ram=experts.bytes_in_ram,
                chosen_on_device=use.on_device,
                chosen_in_ram=use.in_ram,
                exchanged=use.exchanged,
            )
        )

    def _tell_stages(self) -> None:
        """Tell now and then when an instance's pipeline stages computed; the last of them does."""
        now_s = time.monotonic()
        if self._stages is not None and now_s >= self._tells_at_s:
            self._tells_at_s = now_s + _TELL_S
            self._tell(self._stages.worked())

    def _fallen(self, family: str, why: str) -> None:
        if self._rank == 0:
            self._send(Fallback(family, why))

    def _compiles(self, compiler: str) -> None:
        """Report that a compiler works, on a thread beside."""
        self._tell(Compiling(compiler))

    def _ended(self, error: Exception) -> None:
        """End on a thread beside, while `serve` may be waiting for a message that will not come."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._fail(error)
        logging.shutdown()
        os._exit(1)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ModelError):  # its message says all: a traceback would not help
            log.error("the worker cannot go on: %s", error)
            self._send(Failed(str(error)))
            return
        log.error("the worker cannot go on", exc_info=error)
        self._send(Failed(f"{type(error).__name__}: {error}"))

    def _receive(self) -> ToWorker | None:
        payload = self._channel.receive()
        message: ToWorker | None = None if payload is None else self._decoder.decode(payload)
        return message

    def _send(self, message: FromWorker) -> None:
        payload = self._encoder.encode(message)
        with self._sending:
            self._channel.send(payload)


def _forked(fd: int) -> bool:
    """Whether this is a fork that goes on as the spare. None is no fault: one is started anew."""
    try:
        return fork_away(fd)
    except OSError:
        return False


def main() -> int:
    """Serve over the inherited socket."""
    parser = argparse.ArgumentParser(prog="daemon.engine.worker.main")
    parser.add_argument("--fd", type=int, required=True, help="the worker's end of a socketpair")
    parser.add_argument("--links-fd", type=int, default=-1, help="where links come from")
    parser.add_argument("--device", choices=KINDS, default="cpu", help="what to be ready for")
    parser.add_argument("--spare", action="store_true", help="import with idle time alone")
    arguments = parser.parse_args()
    logs.set_up("worker")
    sys.setswitchinterval(_SWITCH_S)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # a daemon asks so where a worker hangs
    die_with_parent(arguments.fd)
    stay_offline()
    share_cores()
    bound_caches()
    keep_compiled(default_cache())
    channel = BlockingChannel(socket.socket(fileno=arguments.fd))
    links = socket.socket(fileno=arguments.links_fd) if arguments.links_fd >= 0 else None
    return EngineWorker(channel, links).serve(arguments.device, arguments.spare)


if __name__ == "__main__":
    exit_status = main()
    sys.stdout.flush()
    logging.shutdown()
    # Everything is sent; taking torch and triton apart again only costs time and prints noise.
    os._exit(exit_status)
