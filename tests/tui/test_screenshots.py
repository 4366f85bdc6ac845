"""The pictures of docs/watching.md come from a recorded run that llmd-top still understands."""

from pathlib import Path

import pytest

from daemon.protocol.control import BlockOwners, Snapshot, Story
from tui import screenshots
from tui.recording import Recording
from tui.screenshots import main

RECORDED = Path(__file__).parents[2] / "docs" / "images" / "busy.rec"


def test_the_recorded_run_has_what_the_pictures_show() -> None:
    recording = Recording(RECORDED)
    last = [recording.message(number) for number in range(len(recording) - 3, len(recording))]
    assert [type(message) for message in last] == [Snapshot, Story, BlockOwners]
    story = next(message for message in last if isinstance(message, Story))
    assert any(mark.what == "gave way" for mark in story.marks)
    assert RECORDED.stat().st_size < 100_000


def test_every_screen_is_pictured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(RECORDED), str(tmp_path)]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    screens = ("overview", "tree", "instance", "blocks", "sequence")
    assert names == {f"llmd-top-{screen}.svg" for screen in screens}
    assert names <= {path.name for path in RECORDED.parent.iterdir()}
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert "cpu0" in text or "sequence" in text
        assert "@font-face" not in text
    monkeypatch.setattr(screenshots, "LIMIT_BYTES", 1000)
    assert main([str(RECORDED), str(tmp_path)]) == 1
    assert main([str(tmp_path / "nothing"), str(tmp_path)]) == 1
    assert "cannot play" in capsys.readouterr().err
