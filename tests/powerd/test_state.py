"""The file of original limits: whole or not at all, never overwritten by another limit."""

import json
import logging
import os
import resource
import stat
from pathlib import Path

import pytest

from daemon.powerd.frames import PowerError
from daemon.powerd.state import MOST_ASIDE, MOST_BYTES, SavedLimits

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
GOOD = {"version": 1, "boot_id": BOOT_ID, "limits_mw": {"GPU-a": 300_000}}
DAMAGED = {
    "empty": b"",
    "cut off": json.dumps(GOOD).encode()[:-3],
    "no JSON": b"\xff\x00\x17",
    "another kind": b"[1, 2]",
    "another version": json.dumps({**GOOD, "version": 2}).encode(),
    "an unknown key": json.dumps({**GOOD, "more": 1}).encode(),
    "no limit": json.dumps({"version": 1, "limits_mw": {"GPU-a": 0}}).encode(),
    "no number": json.dumps({"version": 1, "limits_mw": {"GPU-a": "300"}}).encode(),
    "no card": json.dumps({"version": 1, "limits_mw": {"../x": 300_000}}).encode(),
    "deep": b"[" * 20_000,
    "too large": json.dumps(GOOD).encode() + b" " * MOST_BYTES,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.json"


def test_what_is_remembered_is_found_by_the_next(path: Path) -> None:
    first = SavedLimits(path)
    assert first.limits_mw == {}
    first.remember("GPU-a", 300_000)
    first.remember("GPU-b", 250_000)
    first.forget("GPU-b")
    assert json.loads(path.read_text()) == GOOD
    first.close()
    second = SavedLimits(path)
    assert second.limits_mw == {"GPU-a": 300_000}
    second.close()


def test_what_was_before_the_machine_started_anew_is_not_restored(path: Path) -> None:
    """Cards forget their limits then: what they have is their own, whatever the file says."""
    path.write_text(json.dumps({**GOOD, "boot_id": "another"}))
    saved = SavedLimits(path)
    assert saved.limits_mw == {}
    saved.remember("GPU-a", 280_000)
    assert json.loads(path.read_text()) == {**GOOD, "limits_mw": {"GPU-a": 280_000}}
    saved.close()


def test_an_original_limit_is_never_replaced(path: Path) -> None:
    saved = SavedLimits(path)
    saved.remember("GPU-a", 300_000)
    saved.remember("GPU-a", 120_000)
    assert saved.limits_mw == {"GPU-a": 300_000}
    assert json.loads(path.read_text()) == GOOD
    saved.close()


def test_it_is_one_process_at_a_time(path: Path) -> None:
    first = SavedLimits(path)
    with pytest.raises(PowerError, match="another llmd-powerd"):
        SavedLimits(path)
    first.close()
    SavedLimits(path).close()


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_put_aside_and_said(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(DAMAGED[kind])
    with caplog.at_level(logging.ERROR):
        saved = SavedLimits(path)
    assert saved.limits_mw == {} and not path.exists()
    assert path.with_name("limits.json.damaged-1").read_bytes() == DAMAGED[kind]
    assert "is damaged" in caplog.text and "limits.json.damaged-1" in caplog.text
    saved.remember("GPU-a", 300_000)
    assert json.loads(path.read_text()) == GOOD
    saved.close()


def test_damaged_files_do_not_replace_each_other_while_there_are_names(path: Path) -> None:
    for number in range(MOST_ASIDE + 2):
        path.write_text(f"damaged {number}")
        SavedLimits(path).close()
    names = sorted(one.name for one in path.parent.glob("limits.json.damaged-*"))
    assert len(names) == MOST_ASIDE
    assert path.with_name("limits.json.damaged-1").read_text() == "damaged 0"


def test_a_folder_in_its_place_is_put_aside_too(path: Path) -> None:
    path.mkdir()
    SavedLimits(path).close()
    assert path.with_name("limits.json.damaged-1").is_dir()


def test_a_pipe_in_its_place_is_put_aside_too(path: Path) -> None:
    """Nobody writes into it: to wait for that would be to wait for ever."""
    os.mkfifo(path)
    SavedLimits(path).close()
    assert path.with_name("limits.json.damaged-1").is_fifo()


def test_links_are_not_followed(path: Path) -> None:
    """By hand, as root, the folder may be one into which others write."""
    theirs = path.with_name("theirs")
    theirs.write_text(json.dumps(GOOD))
    path.symlink_to(theirs)
    partial = path.with_name(".limits.json.partial")
    partial.symlink_to(theirs)
    saved = SavedLimits(path)
    assert saved.limits_mw == {} and path.with_name("limits.json.damaged-1").is_symlink()
    saved.remember("GPU-b", 250_000)
    assert theirs.read_text() == json.dumps(GOOD)
    assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o600
    saved.close()


def test_a_file_that_cannot_be_read_for_now_is_not_taken_for_damaged(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, before[1]))  # the lock takes that one
    try:
        with pytest.raises(PowerError, match="cannot be read: Too many open files"):
            SavedLimits(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    saved = SavedLimits(path)
    assert saved.limits_mw == {"GPU-a": 300_000}
    saved.close()


def test_what_a_crash_left_half_written_is_not_read(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    path.with_name(".limits.json.partial").write_text('{"version":1,"lim')
    saved = SavedLimits(path)
    assert saved.limits_mw == {"GPU-a": 300_000}
    saved.remember("GPU-b", 250_000)
    saved.close()
    again = SavedLimits(path)
    assert again.limits_mw == {"GPU-a": 300_000, "GPU-b": 250_000}
    again.close()


def test_what_cannot_be_written_is_not_believed(path: Path) -> None:
    saved = SavedLimits(path)
    saved.remember("GPU-a", 300_000)
    path.with_name(".limits.json.partial").mkdir()
    with pytest.raises(PowerError, match="cannot be written"):
        saved.remember("GPU-b", 250_000)
    with pytest.raises(PowerError, match="cannot be written"):
        saved.forget("GPU-a")
    assert saved.limits_mw == {"GPU-a": 300_000}
    assert json.loads(path.read_text()) == GOOD
    saved.close()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PowerError, match="cannot be opened"):
        SavedLimits(tmp_path / "none" / "limits.json")
