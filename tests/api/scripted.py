"""The runtime's end of the channel, following a script instead of a model."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from tokenizers import Tokenizer

from daemon.protocol.api import (
    AbortRequest,
    Access,
    FinishSequence,
    FromApi,
    Generate,
    PredictedLength,
    Predicting,
    RequestRejected,
    SequenceEnded,
    SequenceStarted,
    Serving,
    Tokens,
)
from daemon.protocol.worker import Logprobs
from daemon.state.request import FinishReason, request_of, sequence_id
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder, int32
from tests.hangs import HANG_S

Answer = Iterator[tuple[int, int]]  # tokens, each with its FinishReason
Script = Callable[[Generate, int], Answer]

MODEL = "tiny"
BLOCK_SIZE = 4
MAX_LEN = 256
SERVING_INTERVAL_S = 2.0


def echo(message: Generate, _stream: int) -> Answer:
    """The prompt's tokens again and again, as many as may be."""
    prompt = message.tokens.tolist()
    for index in range(message.max_tokens):
        last = index + 1 == message.max_tokens
        yield prompt[index % len(prompt)], FinishReason.LENGTH if last else FinishReason.NONE


def two_and_no_more(message: Generate, _stream: int) -> Answer:
    """The prompt's first two tokens, of which only the second has text; then nothing comes."""
    for token in message.tokens.tolist()[:2]:
        yield token, FinishReason.NONE


def saying(tokenizer: Tokenizer, text: str, end: int | None = 1) -> Script:
    """A script that says `text`, then `end`, which stops it."""
    tokens = tokenizer.encode(text, add_special_tokens=False).ids

    def script(message: Generate, _stream: int) -> Answer:
        for index, token in enumerate(tokens):
            last = index + 1 == message.max_tokens
            yield token, FinishReason.LENGTH if last else FinishReason.NONE
            if last:
                return
        if end is not None:
            yield end, FinishReason.STOP

    return script


class ScriptedRuntime:
    """Starts a real API process and answers it."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        self.script: Script = echo
        self.reject: RequestRejected | None = None
        self.fail_at: int | None = (
            None  # steps after which a sequence ends in an error; 0: it waits
        )
        self.fail_with = "the engine broke"
        self.may_complain = False  # to stderr
        self.paused = False  # take requests, start none
        self.interval_s = 0.0
        self.tokens_a_step = 1  # of each sequence
        self.cached = 0
        self.access: Access | None = Access((), (), ())  # sent at first
        self.says_serving = True  # again and again, as the runtime does
        self.received: list[FromApi] = []
        self.serving = Serving(
            model=MODEL,
            root=str(root),
            ready=True,
            draining=False,
            max_len=MAX_LEN,
            context_len=MAX_LEN,
            block_size=BLOCK_SIZE,
            vocab_size=400,
            status="ready",
            last_step_age_s=0.5,
        )
        self._config = {"host": "127.0.0.1", "model": MODEL, **config}
        self._running: dict[int, tuple[Generate, Answer]] = {}
        self._counts: dict[int, int] = {}
        self._waiting: list[Generate] = []
        self._decode = decoder(FromApi).decode
        self._encode = encoder().encode

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *(sys.executable, "-m", "daemon.api"),
            *("--fd", str(theirs.fileno()), "--listen-fd", str(listener.fileno())),
            *("--config", msgspec.json.encode(self._config).decode()),
        ]
        fds = (theirs.fileno(), listener.fileno())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(command, pass_fds=fds, stderr=self._stderr)
        theirs.close()
        listener.close()
        self.channel = Channel(ours, self._frame, lambda _error: None)
        if self.access is not None:
            self.send(self.access)
        self.send(self.serving)
        self._stepping = asyncio.create_task(self._steps())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._stepping.cancel()
        self.channel.close()
        try:
            assert await self.exit_status(HANG_S) == 0
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        said = self.said()
        self._stderr.close()
        complaints = [line for line in said.splitlines() if "INFO" not in line]
        assert self.may_complain or not complaints, said

    def send(self, message: Any) -> None:
        """Send to the API process."""
        self.channel.send(self._encode(message))

    def change(self, **fields: Any) -> None:
        """Send a changed `Serving`."""
        self.serving = msgspec.structs.replace(self.serving, **fields)
        self.send(self.serving)

    def said(self) -> str:
        """The API process's stderr so far."""
        fd = self._stderr.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode()

    def signal(self, number: signal.Signals) -> None:
        """Signal the API process."""
        os.kill(self.process.pid, number)

    async def exit_status(self, timeout_s: float) -> int | None:
        """The process's status once it has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.process.poll() is None:
                    await asyncio.sleep(0.01)
        return self.process.returncode

    def of(self, kind: type) -> list[Any]:
        """The messages of one kind that came so far."""
        return [message for message in self.received if isinstance(message, kind)]

    async def until(self, kind: type, count: int = 1, timeout_s: float = HANG_S) -> list[Any]:
        """Wait for a number of messages of a kind."""
        async with asyncio.timeout(timeout_s):
            while len(self.of(kind)) < count:
                await asyncio.sleep(0.005)
        return self.of(kind)

    def reset(self) -> None:
        """Forget what came, follow the plain script again."""
        assert not self._running
        self.received.clear()
        self.script, self.reject, self.fail_at = echo, None, None
        self.fail_with = "the engine broke"
        self.interval_s, self.cached, self.paused = 0.0, 0, False
        self.tokens_a_step = 1

    @property
    def num_running(self) -> int:
        """Sequences that the script still feeds."""
        return len(self._running)

    def _frame(self, payload: bytes) -> None:
        message = self._decode(payload)
        self.received.append(message)
        if isinstance(message, Generate):
            if self.reject is not None:
                self.send(msgspec.structs.replace(self.reject, request=message.request))
            else:
                self._waiting.append(message)
        elif isinstance(message, AbortRequest):
            self._waiting = [w for w in self._waiting if w.request != message.request]
            for sequence in [s for s in self._running if request_of(s) == message.request]:
                self._end(sequence, FinishReason.ABORT)
        elif isinstance(message, FinishSequence):
            self._end(message.sequence, FinishReason.STOP)
        else:
            assert isinstance(message, PredictedLength | Predicting)

    def _end(self, sequence: int, reason: int, error: str = "") -> None:
        if self._running.pop(sequence, None) is not None:
            self.send(SequenceEnded(sequence, reason, error))

    async def _steps(self) -> None:
        said_s = time.monotonic()
        while True:
            await asyncio.sleep(self.interval_s or 0.001)
            if self.says_serving and time.monotonic() - said_s > SERVING_INTERVAL_S:
                said_s = time.monotonic()
                self.send(self.serving)
            if not self.paused:
                self._start_waiting()
                self._step()

    def _start_waiting(self) -> None:
        for message in self._waiting:
            for stream in range(message.n):
                sequence = sequence_id(message.request, stream)
                if self.fail_at == 0:
                    self.send(SequenceEnded(sequence, FinishReason.ERROR, self.fail_with))
                    continue
                self.send(SequenceStarted(sequence, self.cached))
                self._running[sequence] = (message, self.script(message, stream))
                self._counts[sequence] = 0
        self._waiting.clear()

    def _step(self) -> None:
        sequences, tokens, reasons, depths = [], [], [], []
        for sequence, (message, answer) in list(self._running.items()):
            self._counts[sequence] += 1
            if self.fail_at is not None and self._counts[sequence] >= self.fail_at:
                self._end(sequence, FinishReason.ERROR, self.fail_with)
                continue
            for token, reason in islice(answer, self.tokens_a_step):
                sequences.append(sequence)
                tokens.append(token)
                reasons.append(reason)
                depths.append(message.sampling.logprobs)
                if reason:
                    del self._running[sequence]
        if sequences:
            self.send(
                Tokens(
                    np.asarray(sequences, np.int64),
                    int32(tokens),
                    np.asarray(reasons, np.uint8),
                    logprobs(tokens, depths),
                )
            )


def logprobs(tokens: list[int], depths: list[int]) -> Logprobs | None:
    """Invented ones: the drawn token has -0.5, the k-th best token is the next id with -k."""
    rows = [row for row, depth in enumerate(depths) if depth >= 0]
    if not rows:
        return None
    deepest = max(depths)
    return Logprobs(
        int32(rows),
        np.full(len(rows), -0.5, np.float32),
        int32([tokens[row] + k for row in rows for k in range(deepest)]),
        np.asarray([-1.0 - k for _ in rows for k in range(deepest)], np.float32),
    )
