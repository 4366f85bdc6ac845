"""The control socket: modes, viewers fast, slow and hostile, and what a dead daemon leaves."""

import asyncio
import math
import random
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from daemon.control import client, server
from daemon.control.client import (
    ControlError,
    MessageReader,
    cap,
    choose_placement,
    choose_policy,
    drain,
    drain_instance,
    fetch_snapshot,
    flip,
    migrate,
    question,
    reload,
    resume,
    resume_instance,
)
from daemon.control.orders import RefusalError
from daemon.control.server import MAX_VIEWERS, ControlServer
from daemon.protocol.control import (
    FRAME_LIMIT_BYTES,
    Cap,
    ChooseBudget,
    ChoosePlacement,
    ChoosePolicy,
    Drain,
    DrainInstance,
    Flip,
    Flipped,
    FlipStatus,
    Migrate,
    Migrating,
    Refused,
    Reload,
    Resume,
    ResumeInstance,
    Role,
    Snapshot,
    Status,
    ToViewer,
    TransferStatus,
    Watch,
)
from daemon.scheduler.policies import POLICIES
from daemon.wire.columns import decoder, encoder
from daemon.wire.frames import FrameReader, inline_frame, memfd_frame
from tests.control.orders import CAPPED, FLIPPED, RELOADED, Written
from tests.hangs import HANG_S
from tests.tui import scenario


class Counted:
    """A snapshot source that counts its calls."""

    def __init__(self, num_running: int = 24) -> None:
        self.calls = 0
        self.num_running = num_running

    def __call__(self) -> Snapshot:
        self.calls += 1
        return scenario.snapshot(self.calls, num_running=self.num_running)


@asynccontextmanager
async def serving(
    path: Path, source: Counted, operator: object | None = None
) -> AsyncIterator[ControlServer]:
    server = ControlServer(path, source, operator)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def refusal(path: Path, sent: bytes) -> str:
    """What the daemon says to `sent` before it closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    frames = FrameReader()
    answers: list[bytes] = []
    async with asyncio.timeout(HANG_S):
        while data := await reader.read(1 << 16):
            frames.feed(data)
            answers += frames.payloads()
    writer.close()
    message = decoder(ToViewer).decode(answers[-1])
    assert isinstance(message, Refused)
    return message.message


async def watched(path: Path, interval_s: float, count: int) -> list[Snapshot]:
    """The first `count` snapshots of a watch."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(question(Watch(interval_s)))
    frames = MessageReader()
    snapshots: list[Snapshot] = []
    async with asyncio.timeout(HANG_S):
        while len(snapshots) < count:
            data = await reader.read(1 << 16)
            assert data, "the daemon hung up"
            snapshots += frames.feed(data)
    writer.close()
    return snapshots


async def test_status_is_one_snapshot_and_the_socket_is_0660(path: Path) -> None:
    async with serving(path, Counted()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        snapshot = await asyncio.to_thread(fetch_snapshot, path)
    assert [i.name for i in snapshot.instances] == ["gpu0", "gpu1"]
    assert snapshot.instances[0].block_map.shape == (2048,)
    assert len(snapshot.sequences) == 30
    assert not path.exists()


async def test_two_watchers_share_each_ticks_snapshot(path: Path) -> None:
    source = Counted()
    async with serving(path, source):
        first, second = await asyncio.gather(watched(path, 0.2, 5), watched(path, 0.2, 5))
    assert [s.time_s for s in first] == [s.time_s for s in second]
    assert source.calls <= 6


async def test_a_watch_keeps_its_interval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    wait_for = asyncio.wait_for

    async def noted(awaited: Awaitable[bool], wait_s: float | None) -> bool:
        waits_s.extend([] if wait_s is None else [wait_s])
        return await wait_for(awaited, wait_s)

    monkeypatch.setattr(server.asyncio, "wait_for", noted)
    async with serving(path, Counted()):
        started_s = time.monotonic()
        await watched(path, 0.3, 4)
        assert time.monotonic() - started_s >= 0.85
    assert waits_s and max(waits_s) <= 0.3


async def test_a_viewer_that_stops_reading_is_cut_off(path: Path) -> None:
    source = Counted(num_running=500)
    async with serving(path, source):
        with socket.socket(socket.AF_UNIX) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(str(path))
            slow.sendall(question(Watch(0.2)))
            others = await watched(path, 0.2, 15)
            assert len(others) == 15
            slow.settimeout(2)
            received = 0
            while data := await asyncio.to_thread(slow.recv, 1 << 20):
                received += len(data)
        assert received < 13 * 20_000
        assert len((await asyncio.to_thread(fetch_snapshot, path)).sequences) == 500


@pytest.mark.parametrize("interval_s", [0.0, 0.1, -1.0, 61.0, float("nan"), float("inf")])
async def test_an_interval_out_of_range_is_refused(path: Path, interval_s: float) -> None:
    async with serving(path, Counted()):
        assert "interval_s" in await refusal(path, question(Watch(interval_s)))


async def test_garbage_is_refused_and_the_daemon_lives(path: Path) -> None:
    generator = random.Random(7)
    good = question(Status())
    async with serving(path, Counted()):
        for _ in range(150):
            body = bytearray(generator.randbytes(generator.randrange(1, 200)))
            if generator.random() < 0.5:
                body = bytearray(good)
                body[generator.randrange(len(body))] ^= 1 << generator.randrange(8)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(bytes(body) if generator.random() < 0.5 else inline_frame(bytes(body)))
            writer.write_eof()
            async with asyncio.timeout(HANG_S):
                await reader.read()
            writer.close()
        assert (await asyncio.to_thread(fetch_snapshot, path)).pid == 4242


async def test_each_kind_of_nonsense_is_named(path: Path) -> None:
    header, fd = memfd_frame(b"x")
    with open(fd, "rb"):
        async with serving(path, Counted()):
            assert "memfd" in await refusal(path, header)
            assert "header" in await refusal(path, b"\xff\xff\xff\xff\x00")
            assert "header" in await refusal(path, inline_frame(b" " * (FRAME_LIMIT_BYTES + 1))[:9])
            assert "not understood" in await refusal(path, inline_frame(b""))
            assert "not understood" in await refusal(path, inline_frame(b"\x91" * 5000))
            assert "not understood" in await refusal(path, inline_frame(b"\x81\xa4type\xa3Nah"))


async def test_a_policy_is_chosen_and_the_answer_was_made_after_it(path: Path) -> None:
    source, written = Counted(), Written()
    async with serving(path, source, written):
        before = await asyncio.to_thread(fetch_snapshot, path)
        after = await asyncio.to_thread(choose_policy, path, "srtf")
        await asyncio.to_thread(choose_policy, path, "orca", 2.0, "cpu")
    assert written.orders == ["srtf", "orca on cpu"]
    assert after.time_s > before.time_s


async def test_a_placement_is_chosen_or_refused_with_the_names(path: Path) -> None:
    source, written = Counted(), Written()
    async with serving(path, source, written):
        await asyncio.to_thread(choose_placement, path, "jsq")
        answer = await refusal(path, question(ChoosePlacement("anywhere")))
    assert written.orders == ["place by jsq"]
    assert answer.startswith("unknown placement 'anywhere'; known are ")


async def test_each_order_is_carried_out_and_answered(path: Path) -> None:
    source, written = Counted(), Written()
    async with serving(path, source, written):
        answers = [await asyncio.to_thread(drain, path), await asyncio.to_thread(resume, path)]
        assert await asyncio.to_thread(reload, path) == RELOADED
    assert written.orders == ["drain", "resume", "reload"]
    assert source.calls == 2 and answers[0].time_s < answers[1].time_s, "each is made after it"


async def test_orders_between_instances_are_carried_out_and_answered(path: Path) -> None:
    written, source = Written(), Counted()
    async with serving(path, source, written):
        assert await asyncio.to_thread(flip, path, "gpu0", "prefill") == FLIPPED
        moving = await asyncio.to_thread(migrate, path, 1004, "gpu0")
        assert moving == Migrating(1004, "gpu1", "gpu0")
        assert await asyncio.to_thread(cap, path, "gpu0", 60.0) == CAPPED
        before = source.calls
        for order in (drain_instance, resume_instance):
            assert (await asyncio.to_thread(order, path, "gpu0")).pid == 4242
        assert source.calls == before + 2, "each answer was made after the order"
    assert written.orders == [
        *("flip gpu0 to prefill", "migrate 1004 to gpu0", "cap gpu0 at 60.0"),
        *("drain gpu0", "resume gpu0"),
    ]


@pytest.mark.parametrize("wait_s", [-0.1, 60.1, float("nan")])
async def test_a_wait_out_of_range_is_refused(path: Path, wait_s: float) -> None:
    async with serving(path, Counted(), written := Written()):
        said = await refusal(path, question(Flip("gpu0", "decode", wait_s)))
    assert said == "wait_s must be 0 .. 60.0" and not written.orders


async def test_a_flip_that_takes_its_time_delays_no_other_viewer(path: Path) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    class Slow(Written):
        async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
            begun.set()
            await done.wait()
            return await super().flip(instance, role, wait_s)

    async with serving(path, Counted(), Slow()):
        order = asyncio.create_task(asyncio.to_thread(flip, path, "gpu0", "prefill"))
        await begun.wait()
        assert (await asyncio.to_thread(fetch_snapshot, path)).pid == 4242
        assert not order.done()
        done.set()
        assert await order == FLIPPED


async def test_transfers_and_flips_cross_the_socket(path: Path) -> None:
    going = TransferStatus(3, 1004, "gpu0", "gpu1", 9, 9000, 0.1, 0.4, True, False)
    flipped = FlipStatus(1, "gpu0", Role.MIXED, Role.DECODE, "operator", 3.0, 0.2, -1.0, False)
    told = msgspec.structs.replace(scenario.snapshot(1), transfers=(going,), flips=(flipped,))
    server = ControlServer(path, lambda: told)
    await server.start()
    seen = await asyncio.to_thread(fetch_snapshot, path)
    await server.close()
    assert (seen.transfers, seen.flips) == ((going,), (flipped,))


async def test_an_unknown_policy_is_refused_with_the_names_and_nothing_happens(path: Path) -> None:
    written, longest = Written(), 149 + len(", ".join(POLICIES))
    async with serving(path, Counted(), written):
        for name in ("fcfs", "", "SRTF", "x" * 100_000):
            answer = await refusal(path, question(ChoosePolicy(name)))
            assert answer.startswith(f"unknown policy '{name[:80]}") and len(answer) < longest
            assert answer.split("known are ")[1].split(", ") == sorted(POLICIES)
        assert (await asyncio.to_thread(fetch_snapshot, path)).ready
    assert written.orders == []


async def test_a_choice_that_cannot_be_carried_out_is_refused_with_its_reason(path: Path) -> None:
    def too_early() -> None:
        raise RefusalError("not yet")

    def broken() -> None:
        raise RuntimeError("half done")

    for orders, said in (
        (Written(too_early), "not yet"),
        (Written(broken), "internal error"),
        (None, "nothing can be changed here"),
    ):
        async with serving(path, Counted(), orders):
            asked = (
                *(ChoosePolicy("srtf"), Reload(), Drain(), Resume(), Flip("gpu0", "decode")),
                *(Migrate(7, "gpu0"), DrainInstance("gpu0"), ResumeInstance("gpu0")),
                *(Cap("gpu0", None), ChooseBudget(64)),
            )
            for order in asked:
                assert await refusal(path, question(order)) == said
            with pytest.raises(ControlError, match=said):
                await asyncio.to_thread(choose_policy, path, "srtf")


def test_a_snapshot_of_an_older_daemon_is_understood() -> None:
    """One from before levels, swapping and predictions: its viewers fill in that there are none."""
    newest = scenario.snapshot(5)
    plain = msgspec.msgpack.decode(encoder().encode(newest))
    added = ("swap", "host_blocks", "host_held", "out_blocks", "in_blocks", "link_s", "levels")
    for instance in plain["instances"]:
        for name in added:
            del instance[name]
    for name in ("swaps_out", "swaps_in", "prediction_count", "prediction_error_sum"):
        del plain["counters"][name]
    plain["sequences"] = [sequence[:11] for sequence in plain["sequences"]]
    old = decoder(ToViewer).decode(msgspec.msgpack.encode(plain))
    assert old.sequences == newest.sequences and old.counters == newest.counters
    assert old.instances[0].block_map.tolist() == newest.instances[0].block_map.tolist()
    assert [getattr(old.instances[0], name) for name in added] == ["recompute", 0, 0, 0, 0, 0.0, ()]


async def test_levels_and_residency_cross_the_socket(path: Path) -> None:
    source = Counted()
    server = ControlServer(path, lambda: scenario.swapping(source.calls))
    await server.start()
    seen = await asyncio.to_thread(fetch_snapshot, path)
    await server.close()
    assert seen.sequences == scenario.swapping(0).sequences
    assert seen.instances[0].levels == (12, 8, 0, 3, 0, 0, 1, 0)


async def test_viewers_are_bounded(path: Path) -> None:
    async with serving(path, Counted()):
        open_ones = [await asyncio.open_unix_connection(path) for _ in range(MAX_VIEWERS)]
        assert "viewers" in await refusal(path, b"")
        for _reader, writer in open_ones:
            writer.close()
        await asyncio.sleep(0.1)
        assert (await asyncio.to_thread(fetch_snapshot, path)).ready


async def test_a_stale_socket_is_taken_over_and_a_live_one_is_not(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path, Counted()):
        rival = ControlServer(path, Counted())
        with pytest.raises(FileExistsError, match=r"another daemon .* holds"):
            await rival.start()
        await rival.close()
        assert (await asyncio.to_thread(fetch_snapshot, path)).ready


async def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="not a socket"):
        await ControlServer(path, Counted()).start()
    assert path.read_text() == "mine"


async def test_a_source_that_fails_does_not_end_the_server(path: Path) -> None:
    source = Counted()
    async with serving(path, source):
        source.num_running = None  # type: ignore[assignment]
        assert await refusal(path, question(Status())) == "internal error"
        source.num_running = 3
        assert (await asyncio.to_thread(fetch_snapshot, path)).running == 3


def test_no_daemon_is_said_plainly(path: Path) -> None:
    with pytest.raises(ControlError, match="no such socket"):
        fetch_snapshot(path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ControlError, match="no process listens"):
        fetch_snapshot(path)


def test_a_mute_daemon_is_given_up_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []

    class Noted(socket.socket):
        def settimeout(self, value: float | None, /) -> None:
            waits_s.append(math.inf if value is None else value)
            super().settimeout(value)

    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen()
        monkeypatch.setattr(client.socket, "socket", Noted)
        with pytest.raises(ControlError, match="no llmd daemon answers"):
            fetch_snapshot(path, timeout_s=0.3)
    assert waits_s and max(waits_s) <= 0.3
