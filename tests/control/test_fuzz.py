"""Whatever comes in at the control socket is answered or refused, and the connection closed."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.control.client import fetch_snapshot, question
from daemon.control.server import ControlServer
from daemon.protocol.control import (
    FRAME_LIMIT_BYTES,
    AskOwners,
    AskStory,
    Cap,
    ChooseBudget,
    ChoosePlacement,
    ChoosePolicy,
    Drain,
    DrainInstance,
    Flip,
    Migrate,
    Reload,
    Resume,
    ResumeInstance,
    Status,
    ToViewer,
    Watch,
)
from daemon.wire.columns import decoder
from daemon.wire.frames import FrameReader, inline_frame
from tests.control.orders import Written
from tests.hangs import HANG_S
from tests.tui import scenario

GOOD = [
    question(message)
    for message in (
        *(Status(), Watch(0.5), Reload(), Drain(), Resume()),
        *(ChoosePolicy("srtf"), ChoosePlacement("jsq"), AskStory(7), AskOwners(0)),
        ChooseBudget(64, "gpu0"),
        *(Flip("gpu0", "decode"), Migrate(7, "gpu1"), DrainInstance("gpu0")),
        *(ResumeInstance("gpu0"), Cap("gpu0", 250.0)),
    )
]
DEEPEST = 32
_decode = decoder(ToViewer).decode


def value(chance: random.Random, depth: int = 0) -> Any:
    """Some value of msgpack, nested now and then."""
    if depth < 5 and chance.random() < 0.3:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if depth < 5 and chance.random() < 0.3:
        names = ("type", "policy", "interval_s", "sequence", "x" * chance.randrange(50))
        return {chance.choice(names): value(chance, depth + 1) for _ in range(chance.randrange(4))}
    odd = (None, True, -1, 2**63, 1e308, float("nan"), "Watch", "Status", b"\xff" * 9, "\u2028")
    return chance.choice(odd)


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Noise, good questions with noise behind, bits turned or cut, and frames of anything."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.random()
        data = bytearray(chance.choice(GOOD))
        if kind < 0.05:
            yield bytes(data) + chance.randbytes(chance.randrange(9))
        elif kind < 0.2:
            yield chance.randbytes(chance.randrange(1, 300))
        elif kind < 0.5:
            for _ in range(chance.randint(1, 3)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            yield bytes(data)
        elif kind < 0.6:
            yield bytes(data[: chance.randrange(len(data))])
        elif kind < 0.7:
            yield inline_frame(b"\x91" * chance.randint(DEEPEST, 3000))
        else:
            yield inline_frame(msgspec.msgpack.encode(value(chance)))


class Sink:
    """A connection's writing end that keeps what is written: no socket is needed for a million."""

    def __init__(self) -> None:
        self.transport = self
        self.frames = FrameReader()
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str) -> "Sink":
        return self

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return bytes(size) if size == 12 else b""  # root

    def write(self, data: bytes) -> None:
        self.frames.feed(data)

    async def drain(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("count", [3000, pytest.param(1_000_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(1800)
async def test_no_input_ends_the_server(
    path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(1, num_running=2), Written())
    await server.start()
    answered = refused = 0
    for data in inputs(11, count):
        reader, sink = asyncio.StreamReader(), Sink()
        reader.feed_data(data)
        reader.feed_eof()
        await server._serve(reader, sink)  # type: ignore[arg-type]
        assert sink.closed
        for payload in sink.frames.payloads():
            if type(_decode(payload)).__name__ == "Refused":
                refused += 1
            else:
                answered += 1
    assert (await asyncio.to_thread(fetch_snapshot, path)).pid == 4242
    await server.close()
    assert not [one for one in caplog.records if one.exc_info], "nothing went wrong inside"
    assert refused > count / 3 and answered > count / 100


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * (DEEPEST + 1),
        b"\x81\xa4type" * (DEEPEST + 1),
        b"\x82\xa4type\xa5Watch\xaainterval_s" + b"\x91" * (DEEPEST + 1) + b"\x01",
        b"\x82\xa4type\xa6Status\xa1x" + b"\x91" * 100_000 + b"\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x00" * FRAME_LIMIT_BYTES,
    ],
)
async def test_what_is_deep_or_long_is_refused(path: Path, payload: bytes) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(1))
    await server.start()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(inline_frame(payload))
    frames = FrameReader()
    async with asyncio.timeout(HANG_S):
        while data := await reader.read(1 << 16):
            frames.feed(data)
    writer.close()
    await server.close()
    (answer,) = frames.payloads()
    assert "not understood" in _decode(answer).message


async def test_a_frame_over_the_limit_is_refused_before_it_comes(path: Path) -> None:
    server = ControlServer(path, lambda: scenario.snapshot(1))
    await server.start()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write((FRAME_LIMIT_BYTES + 1).to_bytes(4, "little") + b"\x00")
    async with asyncio.timeout(HANG_S):
        assert b"Refused" in await reader.read()
    writer.close()
    await server.close()
