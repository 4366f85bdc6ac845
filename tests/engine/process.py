"""A worker as a real process behind a real socketpair."""

import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from daemon.protocol.worker import (
    Failed,
    FromWorker,
    Load,
    Loading,
    NewLink,
    Ready,
    StartTransfer,
    ToWorker,
)
from daemon.supervisor.spare import WORKER
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import decoder, encoder
from tests.hangs import HANG_S


class WorkerProcess:
    """Starts `python -m daemon.engine.worker.main`, or a quick one that `environment` names.

    It speaks the worker's protocol.
    """

    def __init__(self, stderr: Any = None, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        self.links, their_links = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [theirs.fileno(), their_links.fileno()]
        command = [sys.executable, "-m", environment.get(WORKER, "daemon.engine.worker.main")]
        command += ["--fd", str(fds[0]), "--links-fd", str(fds[1])]
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(command, pass_fds=fds, stderr=stderr, env=environment)
        theirs.close()
        their_links.close()
        self._channel = BlockingChannel(ours)
        self._encoder, self._decoder = encoder(), decoder(FromWorker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()
        self.links.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def send(self, message: ToWorker) -> None:
        self._channel.send(self._encoder.encode(message))

    def link(self, message: NewLink, sock: socket.socket) -> None:
        """Give the worker one end of a link, which is its own from then on."""
        with sock:
            socket.send_fds(self.links, [self._encoder.encode(message)], [sock.fileno()])

    def beside(self, message: StartTransfer) -> None:
        """Order what waits for no step."""
        self.links.send(self._encoder.encode(message))

    def says(self, timeout_s: float) -> bool:
        """Whether it sends something within a time."""
        return self._channel.wait(timeout_s)

    def receive(self) -> FromWorker:
        payload = self._channel.receive()
        assert payload is not None, "the worker closed its end"
        message: FromWorker = self._decoder.decode(payload)
        return message

    def load(self, message: Load) -> Ready | Failed:
        """Send `Load` and wait for what follows the progress messages."""
        self.send(message)
        return self.end_of_loading()

    def end_of_loading(self) -> Ready | Failed:
        """What follows the progress messages."""
        fractions = []
        while isinstance(answer := self.receive(), Loading):
            fractions.append(answer.fraction)
        assert fractions == sorted(fractions)
        assert isinstance(answer, Ready | Failed)
        return answer

    def hang_up(self) -> None:
        self._channel.close()

    def exit_status(self) -> int:
        return self.process.wait(timeout=HANG_S)


def cpu_load(model: str, **changes: Any) -> Load:
    """A small CPU instance of a model."""
    fields: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": 64,
        "max_slots": 8,
        "max_len": 256,
        "max_batch_tokens": 128,
        "num_threads": 0,
    }
    return Load(**{**fields, **changes})
