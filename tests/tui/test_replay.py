"""Recordings: written whole, bounded, named where they are damaged; and played at any speed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from daemon.protocol.control import Snapshot
from tests.tui import scenario
from tests.tui.driving import Scripted, screen_text
from tui import replay as replay_module
from tui.dashboard import LlmdTop
from tui.recording import FIRST_LINE, Recording, RecordingError, RecordingWriter
from tui.replay import SPEEDS, Replay
from tui.source import Rewound


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A minute of snapshots, two a second, with a story in between."""
    path = tmp_path / "busy.rec"
    recorder = RecordingWriter(path)
    for step in range(120):
        recorder.write(1000 + step / 2, scenario.swapping(step, num_running=6))
        if step == 60:
            recorder.write(1000 + step / 2 + 0.1, scenario.story(1002, 130.0))
    recorder.close()
    assert recorder.size_bytes == path.stat().st_size
    return path


def test_what_was_heard_is_what_is_played(recorded: Path) -> None:
    recording = Recording(recorded)
    assert len(recording) == 121 and not recording.cut_off
    assert (recording.time_s(0), recording.time_s(120)) == (0.0, 59.5)
    message = recording.message(5)
    assert isinstance(message, Snapshot)
    assert message.sequences == scenario.swapping(5, num_running=6).sequences


def test_a_file_that_is_there_is_not_written_over(recorded: Path) -> None:
    with pytest.raises(RecordingError, match=r"cannot record to .*busy\.rec: File exists"):
        RecordingWriter(recorded)


def test_a_full_recording_stops_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "small"
    recorder = RecordingWriter(path, limit_bytes=20_000)
    for step in range(20):
        recorder.write(float(step), scenario.snapshot(step))
    assert recorder.trouble == "the recording is full"
    assert recorder.size_bytes == path.stat().st_size <= 20_000
    assert 1 <= len(Recording(path)) < 20


def test_a_recorder_that_died_leaves_all_but_the_last_message(recorded: Path) -> None:
    data = recorded.read_bytes()
    recorded.write_bytes(data[:-100])
    recording = Recording(recorded)
    assert len(recording) == 120 and recording.cut_off


def test_damage_is_named_with_its_place(recorded: Path, tmp_path: Path) -> None:
    data = bytearray(recorded.read_bytes())
    data[len(data) // 2] ^= 1
    recorded.write_bytes(data)
    with pytest.raises(RecordingError, match=r"busy\.rec is damaged at byte \d+"):
        Recording(recorded)
    for content, why in (
        (b"", "cannot play"),
        (b"hello", "no recording"),
        (FIRST_LINE, "holds no message"),
        (FIRST_LINE + b"\xff" * 40, "damaged at byte 21"),
    ):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(RecordingError, match=why):
            Recording(other)
    with pytest.raises(RecordingError, match="cannot play"):
        Recording(tmp_path / "nowhere")


async def test_time_is_in_ones_hand(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(replay_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    replay = Replay(Recording(recorded))
    news = replay.news()
    first = await anext(news)
    assert isinstance(first, Snapshot) and first.time_s == 100.0
    now[0] += 2.0
    seen = [await anext(news) for _ in range(4)]
    assert [one.time_s for one in seen if isinstance(one, Snapshot)] == [100.5, 101, 101.5, 102]
    replay.faster(2)
    assert replay.speed == 4.0
    now[0] += 1.0
    assert replay.at_s == pytest.approx(6.0)
    replay.toggle()
    now[0] += 100.0
    assert replay.at_s == pytest.approx(6.0)
    replay.seek(30.2)
    rewound, then = await anext(news), await anext(news)
    assert isinstance(rewound, Rewound) and isinstance(then, Snapshot)
    assert [one.time_s for one in rewound.before] == [100 + step / 2 for step in range(72)]
    assert then.time_s == 136.0
    replay.seek(-1000)
    rewound, then = await anext(news), await anext(news)
    assert rewound == Rewound(()) and isinstance(then, Snapshot) and then.time_s == 100.0
    replay.seek(1e9)
    assert replay.at_s == replay.end_s == 59.5
    replay.faster(-100)
    assert replay.speed == SPEEDS[0]
    rewound, last = await anext(news), await anext(news)
    assert isinstance(last, Snapshot) and last.time_s == 159.5
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(news), 0.01)


async def test_the_screen_says_replay_and_obeys_the_keys(recorded: Path) -> None:
    source = Replay(Recording(recorded))
    source.toggle()
    app = LlmdTop(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("full_stop", "full_stop", "plus", "minus", "plus")
        while app.watched.snapshot is None or app.watched.snapshot.time_s != 120.0:
            await pilot.pause(0.01)
        app.show()
        await pilot.pause()
        text = screen_text(app)
        assert "REPLAY ‖ 0:20 of 0:59 ×2" in text.splitlines()[0]
        assert not app.may_order
        assert len(app.watched.history.points) == 20
        await pilot.press("o", "p")
        assert not source.paused
        await pilot.press("question_mark")
        assert "a minute; slower or faster" in screen_text(app)


async def test_all_that_is_heard_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "new.rec"
    source = Scripted(scenario.swapping(1), scenario.story(1002, 119.0), scenario.swapping(2))
    app = LlmdTop(source, recorder=RecordingWriter(path))
    async with app.run_test(size=(120, 40)) as pilot:
        await source.said.join()
        app.show()
        await pilot.pause()
        assert "● REC" in screen_text(app).splitlines()[0]
    recording = Recording(path)
    kinds = [type(recording.message(number)).__name__ for number in range(len(recording))]
    assert kinds == ["Snapshot", "Story", "Snapshot"]
