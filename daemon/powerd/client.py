"""The daemon's end of llmd-powerd's socket, on asyncio."""

import asyncio
import os
from collections import deque
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from daemon.powerd.frames import (
    FRAME_LIMIT_BYTES,
    CapInForce,
    CardReading,
    LeaseCap,
    PowerError,
    PowerLostError,
    PowerQuestion,
    PowerRefusal,
    ReadCard,
    question_frame,
)

ANSWER_S = 5.0
"""Longest wait for an answer: a driver that has to wake a card takes seconds."""

Answer = TypeVar("Answer", CapInForce, CardReading)


class PowerClient:
    """A connection to llmd-powerd. Its leases end with it, on whichever side it ends.

    After PowerLostError there are no leases any more: connect and lease again.
    """

    def __init__(self, lines: "_Lines", timeout_s: float) -> None:
        """`connect` makes it."""
        self._lines = lines
        self._timeout_s = timeout_s

    @classmethod
    async def connect(cls, path: Path, timeout_s: float = ANSWER_S) -> "PowerClient":
        """Connect; raises PowerLostError where llmd-powerd does not listen. Each answer may take
        `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, lines = await loop.create_unix_connection(_Lines, os.fspath(path))
        except OSError as error:  # TimeoutError is one
            text = error.strerror or "no answer in time"
            raise PowerLostError(f"no llmd-powerd answers at {path}: {text}") from error
        return cls(lines, timeout_s)

    async def lease(self, device: str, watts: float | None) -> CapInForce:
        """Keep a card, by UUID, at no less than `watts`; None gives the lease back.

        The answer has the limit in force, which is higher where another client leased more. Raises
        PowerError where the lease was refused: the previous one still holds.
        """
        return await self._ask(LeaseCap(device, watts), CapInForce)

    async def read(self, device: str) -> CardReading:
        """A card's power and limits. Raises PowerError."""
        return await self._ask(ReadCard(device), CardReading)

    async def lost(self) -> None:
        """Return once the connection has ended."""
        await self._lines.ended.wait()

    def close(self) -> None:
        """End the connection, and its leases."""
        self._lines.end()

    async def _ask(self, asked: PowerQuestion, kind: type[Answer]) -> Answer:
        waiting = self._lines.send(question_frame(asked))
        try:
            async with asyncio.timeout(self._timeout_s):
                line = await waiting
        except TimeoutError as error:
            self._lines.end()
            raise PowerLostError(f"no answer within {self._timeout_s:g} s") from error
        try:
            verdict = msgspec.json.decode(line, type=PowerRefusal)
            if verdict.ok:
                return msgspec.json.decode(line, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._lines.end()
            raise PowerLostError(f"an answer was not understood: {error}") from error
        raise PowerError(verdict.error)


class _Lines(asyncio.Protocol):
    """Questions waiting, in order, for the lines that answer them."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def send(self, data: bytes) -> "asyncio.Future[bytes]":
        """Send a question; return its answer. Raises PowerLostError after the end."""
        if self._transport is None or self.ended.is_set():
            raise PowerLostError("the connection to llmd-powerd has ended")
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._transport.write(data)
        return waiting

    def end(self) -> None:
        """Close at once; open questions are lost."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback: the connection begins."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's callback: lines came, or pieces of some."""
        self._received += data
        while (length := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[:length])
            del self._received[: length + 1]
            if self._waiting and not (waiting := self._waiting.popleft()).done():
                waiting.set_result(line)
        if len(self._received) >= FRAME_LIMIT_BYTES:
            self.end()

    def connection_lost(self, _error: Exception | None) -> None:
        """asyncio's callback: the other side has closed, or we have."""
        self._lose()

    def _lose(self) -> None:
        self.ended.set()
        while self._waiting:
            if not (waiting := self._waiting.popleft()).done():
                waiting.set_exception(PowerLostError("the connection to llmd-powerd has ended"))
