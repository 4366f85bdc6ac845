"""A worker process without a model: `python -m tests.chaos.worker --fd N --device KIND [--spare]`.

It speaks a worker's protocol, starts in a fifth of a second, and computes the toy.
"""

import argparse
import faulthandler
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from daemon.base import logs
from daemon.protocol.worker import Failed, FromWorker, Load, Loading, Plan, Ready, Reply, ToWorker
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder, encoder
from daemon.wire.parent import die_with_parent
from daemon.wire.pulse import Alive, Ping
from tests.chaos.engine import COPY_BLOCK_S, STEP_S, TOKEN_S, ToyEngine

log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
LINGER_S = 0.002
"""For so long a swap copy stays on its way while nothing else happens."""


class ToyWorker:
    """Messages in, messages out."""

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()  # a frame is whole, whichever thread sends it
        self._encode = encoder().encode
        self._decode = decoder(ToWorker).decode

    def serve(self, spare: bool) -> int:
        """Load, then answer plans until told to stop; the process's exit status."""
        try:
            self._send(Loading("spare" if spare else "imports", 0.0))
            while isinstance(message := self._receive(), Ping):
                self._send(Alive())
            if isinstance(message, Load):
                self._answer_plans(self._load(message))
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except Exception as error:
            log.exception("the toy cannot go on")
            self._send(Failed(f"{type(error).__name__}: {error}"))
            return 1
        return 0

    def _load(self, load: Load) -> ToyEngine:
        engine = self._engine(load)
        self._send(
            Ready(
                num_blocks=load.num_blocks,
                block_bytes=BLOCK_BYTES,
                weight_bytes=1,
                step_s=STEP_S,
                num_host_blocks=load.num_host_blocks,
                host_block_bytes=BLOCK_BYTES,
                copy_block_s=COPY_BLOCK_S,
                token_s=TOKEN_S,
            )
        )
        return engine

    def _engine(self, load: Load) -> ToyEngine:
        return ToyEngine(load, self._send)

    def _answer_plans(self, engine: ToyEngine) -> None:
        while True:
            while engine.copies_fly and not self._channel.wait(LINGER_S):
                engine.end_copies()
            message = self._receive()
            if isinstance(message, Plan):
                self._compute(engine, message)
            elif not self._take(message):
                return

    def _compute(self, engine: ToyEngine, plan: Plan) -> None:
        self._answer(engine.run(plan))

    def _answer(self, reply: Reply) -> None:
        time.sleep(reply.elapsed_s)
        self._send(reply)

    def _take(self, message: ToWorker | None) -> bool:
        """Handle a message that is no plan; return whether it was an order."""
        return False

    def _receive(self) -> ToWorker | None:
        payload = self._channel.receive()
        message: ToWorker | None = None if payload is None else self._decode(payload)
        return message

    def _send(self, message: FromWorker) -> None:
        payload = self._encode(message)
        with self._sending:
            self._channel.send(payload)


def main(make: Callable[[BlockingChannel, int], ToyWorker]) -> int:
    """Serve over the inherited socket; `make` is given the links' descriptor too."""
    parser = argparse.ArgumentParser(prog="tests.chaos.worker")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--links-fd", type=int, default=-1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--spare", action="store_true")
    arguments = parser.parse_args()
    logs.set_up("worker")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    die_with_parent(arguments.fd)
    channel = BlockingChannel(socket.socket(fileno=arguments.fd))
    return make(channel, arguments.links_fd).serve(arguments.spare)


if __name__ == "__main__":
    os._exit(main(lambda channel, _links_fd: ToyWorker(channel)))
