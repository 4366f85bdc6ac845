"""Files are replaced whole or not at all."""

import logging
from pathlib import Path

import pytest

from daemon.predictor.disk import MOST_ASIDE, read_file, remove, set_aside, write_file


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


def test_what_cannot_be_written_moved_or_deleted_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not write_file(tmp_path, b"x")
        assert set_aside(tmp_path / "none") is None
        remove(tmp_path)
        remove(tmp_path / "none")  # is no matter
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


def test_what_is_there_and_cannot_be_read_is_not_taken_for_missing(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    assert read_file(tmp_path / "none") is None


def test_nothing_that_was_set_aside_is_ever_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [b"%d" % number for number in range(MOST_ASIDE + 1)]
    for data in contents:
        path.write_bytes(data)
        aside = set_aside(path)
    assert aside is None and path.read_bytes() == contents[-1], "one too many stays"
    kept = [tmp_path / "file.corrupt", *(tmp_path / f"file.corrupt.{n}" for n in (1, 2, 3))]
    assert [one.read_bytes() for one in kept] == contents[:-1]
