"""What is remembered, and that forgetting it costs nothing else."""

from pathlib import Path

import pytest

from tui.settings import KeptSettings, default_place, keep_settings, read_settings


def test_choices_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = default_place()
    assert place == tmp_path / "llmd" / "top.json"
    assert read_settings(place) == KeptSettings()
    keep_settings(place, KeptSettings("nord"))
    assert read_settings(place) == KeptSettings("nord")
    assert [one.name for one in place.parent.iterdir()] == ["top.json"]
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert default_place() == Path.home() / ".config" / "llmd" / "top.json"


def test_what_cannot_be_read_or_written_is_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "top.json"
    for content in (b"", b"{", b'{"theme": 3}', b"\xff"):
        place.write_bytes(content)
        assert read_settings(place) == KeptSettings()
    place.write_bytes(b'{"theme": "nord", "of a newer one": 1}')
    assert read_settings(place) == KeptSettings("nord")
    blocked = tmp_path / "top.json" / "deeper" / "top.json"
    keep_settings(blocked, KeptSettings("nord"))
    assert place.is_file()
