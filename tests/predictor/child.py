"""The real predictor process, and what an API process would send it and hear."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from daemon.protocol.predictor import Ask, Ended, Estimate, ToPredictor
from daemon.wire.blocking import BlockingChannel
from tests.hangs import HANG_S


class Child:
    """`python -m daemon.predictor.process` until the block ends; it must exit 0."""

    def __init__(self, store: Path, kind: str = "mean", **config: object) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(HANG_S)
        words = [sys.executable, "-m", "daemon.predictor.process", "--fd", str(theirs.fileno())]
        words += ["--store", str(store), "--config", json.dumps({"kind": kind, **config})]
        self.process = subprocess.Popen(
            words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
        )
        theirs.close()
        self._channel = BlockingChannel(ours)
        self._decode = msgspec.msgpack.Decoder(Estimate).decode
        self.said = ""  # on stderr, once it has ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        assert self.process.returncode == 0 or error is not None, self.said

    def hang_up(self) -> int:
        """End the channel and wait for the process's end; its status."""
        self._channel.close()
        return self.wait()

    def wait(self) -> int:
        if not self.process.stderr or self.process.stderr.closed:
            return self.process.wait(HANG_S)
        try:
            _, self.said = self.process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode

    def send(self, message: ToPredictor) -> None:
        self._channel.send(msgspec.msgpack.encode(message))

    def receive(self) -> Estimate:
        payload = self._channel.receive()
        assert payload is not None, "the process hung up"
        return self._decode(payload)

    def ask(self, request: int, text: str, num_prompt_tokens: int = 9) -> Estimate:
        self.send(Ask(request, text, num_prompt_tokens, 1000))
        answer = self.receive()
        assert answer.request == request
        return answer

    def teach(self, request: int, text: str, num_tokens: int, num_prompt_tokens: int = 9) -> None:
        """A whole request, from its prediction to its end."""
        self.ask(request, text, num_prompt_tokens)
        self.send(Ended(request, num_tokens))
