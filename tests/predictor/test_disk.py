"""Files are replaced whole or not at all."""

import logging
from pathlib import Path

import pytest

from daemon.predictor.disk import read_file, set_aside, write_file


def test_what_is_written_is_read_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    assert read_file(path) is None
    for data in (b"one", b"", b"three" * 100_000):
        assert write_file(path, data)
        assert read_file(path) == data
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_a_crash_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_file(path, b"old")
    (tmp_path / ".file.partial").write_bytes(b"half of the n")
    assert read_file(path) == b"old"
    assert write_file(path, b"new")
    assert read_file(path) == b"new" and len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_read_or_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_file(tmp_path) is None
        assert not write_file(tmp_path, b"x")
        assert set_aside(tmp_path / "none") == tmp_path / "none"
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


def test_setting_aside_takes_an_older_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"two"):
        path.write_bytes(data)
        aside = set_aside(path)
    assert aside.name == "file.corrupt" and aside.read_bytes() == b"two" and not path.exists()
