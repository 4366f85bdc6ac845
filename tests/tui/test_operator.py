"""What an operator runs into in the first hour: small terminals, pictures, keys that do nothing."""

from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from daemon.protocol.control import Snapshot
from tests.tui import scenario
from tests.tui.driving import Scripted, screen_text, watching
from tui.client import DaemonSource
from tui.dashboard import LlmdTop
from tui.recording import Recording, RecordingWriter
from tui.replay import Replay


def asked(snapshot: Snapshot) -> Snapshot:
    """The same, with who asked for each sequence."""
    sequences = tuple(
        msgspec.structs.replace(one, request_id=f"job-{one.sequence}", key="alice")
        for one in snapshot.sequences
    )
    return msgspec.structs.replace(snapshot, sequences=sequences)


def hears(app: LlmdTop, told: Snapshot) -> None:
    app.watched.hear(told)
    app.show()


async def test_on_a_small_terminal_numbers_win_over_charts() -> None:
    async with watching(scenario.swapping(10), scenario.swapping(12), size=(80, 24)) as top:
        text = await top.picture()
        assert all(len(line) <= 80 for line in text.splitlines())
        assert not top.app.overview.output.size.height, "a chart of two lines says nothing"
        assert not top.app.overview.blocks.size.height > 1
        for word in ("tok/s", "TTFT", "TPOT", "pause", "finished", "prefix hits", "held", "free"):
            assert word in text, word
        sequences = top.app.overview.sequences
        assert sequences.size.height - 1 >= 8
        await top.pilot.resize_terminal(120, 40)
        await top.picture()
        assert top.app.overview.output.size.height


async def test_a_picture_is_saved_where_it_was_started_and_the_line_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app = LlmdTop(Scripted(scenario.snapshot(10)))
    async with app.run_test(size=(100, 30)) as pilot:
        monkeypatch.chdir(tmp_path / "elsewhere")
        (command,) = [
            one for one in app.get_system_commands(app.screen) if one.title == "Screenshot"
        ]
        command.callback()
        message = await said(app, pilot)
        (picture,) = tmp_path.glob("*.svg")
        assert message == f"saved as {picture}" and "<svg" in picture.read_text()
        app.action_screenshot("x.svg", str(tmp_path / "no" / "such"))
        assert (await said(app, pilot)).startswith("no picture was saved: ")


async def test_the_table_names_the_instance_the_clients_request_and_its_key() -> None:
    busy = asked(scenario.snapshot(10))
    first = busy.sequences[0]
    async with watching(busy, size=(160, 40)) as top:
        sequences, key = top.app.overview.sequences, str(first.sequence)
        assert sequences.cell(key, "request").text == f"job-{first.sequence}"
        assert sequences.cell(key, "key").text == "alice"
        assert sequences.cell(key, "instance").text == first.instance
        text = await top.press("slash", *f"job-{first.sequence}")
        assert top.ids == [first.sequence]
        await top.press("escape", "enter")
        text = await top.picture()
        assert f"job-{first.sequence}" in text and "alice" in text
    async with watching(busy, size=(80, 24)) as top:
        assert top.app.overview.sequences.cell(key, "instance").text == first.instance
    async with watching(scenario.snapshot(10), size=(160, 40)) as top:
        text = await top.picture()
        assert " key " not in text and " request " not in text, "nobody named anything"


async def said(app: LlmdTop, pilot: Pilot[None]) -> str:
    """The newest note on the screen, once there is one."""
    while not app._notifications:
        await pilot.pause(0.01)
    (note,) = app._notifications
    app.clear_notifications()
    return note.message


@pytest.mark.parametrize("key", ["r", "d", "m"])
async def test_a_key_that_does_nothing_says_why(key: str, tmp_path: Path) -> None:
    nobody = DaemonSource(tmp_path / "none.sock")
    app = LlmdTop(nobody, readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        await pilot.press(key)
        assert "--readonly" in await said(app, pilot)
    app = LlmdTop(nobody)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert await said(app, pilot) == "no daemon has answered yet: nothing can be ordered"
        hears(app, scenario.moving(10, 3))
        if key == "m":
            await pilot.press("tab")  # from the sequences to the instances
        await pilot.press(key)
        what = "no sequence is chosen: " if key == "m" else "no instance is chosen: "
        assert (await said(app, pilot)).startswith(what)
    recorded = tmp_path / "a.rec"
    writer = RecordingWriter(recorded)
    writer.write(1.0, scenario.moving(10))
    writer.close()
    app = LlmdTop(Replay(Recording(recorded)))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        await pilot.press(key)
        assert await said(app, pilot) == "this is a recording: nothing can be ordered"


async def test_a_sequence_that_has_ended_is_not_sent_anywhere(tmp_path: Path) -> None:
    app = LlmdTop(DaemonSource(tmp_path / "none.sock"))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10, 3))
        await pilot.press("enter")
        opened = app.front.chosen_sequence()
        hears(app, msgspec.structs.replace(scenario.moving(11, 3), sequences=()))
        await pilot.press("m")
        assert await said(app, pilot) == f"sequence {opened} is not listed any more"
        assert "Migrate" not in screen_text(app)
