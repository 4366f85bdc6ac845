"""A journal whose disk stalls: nobody waits for it, and its gaps are where it says."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.core.core import Core
from daemon.core.values.events import Event
from daemon.journal import beside
from daemon.journal.file import WELL_CHUNKS
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME, OLDER_FILE_NAME, Gap
from daemon.journal.writer import JournalWriter
from tests.core.driver import Driver, configured
from tests.core.traffic import random_life
from tests.journal.life import live, record, replayed_beyond_gaps
from tests.journal.test_writer import file_size_limit


class Disk:
    """A disk that takes nothing while it stalls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._works = threading.Event()
        self._works.set()
        self.stalls = threading.Event()
        write = os.pwrite

        def pwrite(*arguments: Any) -> int:
            self.stalls.set()
            self._works.wait()
            self.stalls.clear()
            return write(*arguments)

        monkeypatch.setattr(os, "pwrite", pwrite)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """For so long."""
        self._works.clear()
        try:
            yield
        finally:
            self._works.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def begun(folder: Path, max_bytes: int = 1 << 30) -> tuple[Driver, JournalWriter, Core]:
    """A life that is journaled by a thread, from its first events on."""
    driver = Driver(configured(), 40)
    journal, core = (
        JournalWriter(folder, max_bytes, driver.config, beside=True),
        Core(driver.config),
    )
    live(journal, core, driver.events)
    return driver, journal, core


def busy_life(driver: Driver, number: int) -> list[Event]:
    """Some requests more, to their end; what the Core was told of them."""
    before = len(driver.events)
    for more in range(number):
        driver.now += 0.6
        driver.arrive([more, *range(20)], 5)
        driver.settle()
    return driver.events[before:]


def until_written(journal: Any) -> None:
    """Until nothing waits for the disk."""
    while journal._file._queued_bytes:
        time.sleep(0.001)


def missing(path: Path) -> int:
    return sum(one.num_dropped for one in read_records(path) if isinstance(one, Gap))


@pytest.mark.parametrize("max_bytes", [400, 1 << 30])
@pytest.mark.parametrize("seed", range(4))
def test_the_file_is_the_one_that_is_written_without_a_thread(
    tmp_path: Path, seed: int, max_bytes: int
) -> None:
    driver = random_life(seed, 100)
    busy_life(driver, 6)
    record(tmp_path / "one", driver, max_bytes)
    assert record(tmp_path / "other", driver, max_bytes, beside=True).num_dropped == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "other").iterdir())
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_disk_that_stalls_for_a_while_costs_nothing(tmp_path: Path, disk: Disk) -> None:
    driver, journal, core = begun(tmp_path)
    with disk.stalled():
        live(journal, core, busy_life(driver, 10))
        assert disk.stalls.wait(10)
    journal.close(driver.now)
    assert journal.num_dropped == 0
    assert replayed_beyond_gaps(tmp_path / FILE_NAME, driver) == list(range(len(driver.events)))


def test_what_waits_too_long_is_a_gap_beyond_which_replay_is_exact(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver, journal, core = begun(tmp_path)
    with monkeypatch.context() as patch, disk.stalled():
        patch.setattr(beside, "QUEUE_BYTES", 2000)
        first = busy_life(driver, 40)
        live(journal, core, first)
        dropped = journal.num_dropped
        assert 0 < dropped < len(first)
    until_written(journal)
    live(journal, core, busy_life(driver, 10))
    journal.close(driver.now)
    assert missing(tmp_path / FILE_NAME) == journal.num_dropped == dropped
    numbers = replayed_beyond_gaps(tmp_path / FILE_NAME, driver)
    assert numbers[-1] == len(driver.events) - 1
    assert 1 < len(numbers) <= len(driver.events) - dropped
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 2 and f"keeps up again; {dropped} events miss" in said[1]


def test_a_file_that_was_to_begin_in_a_stall_begins_after_it(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, journal, core = begun(tmp_path, 1000)
    with monkeypatch.context() as patch, disk.stalled():
        patch.setattr(beside, "QUEUE_BYTES", 1000)
        live(journal, core, busy_life(driver, 20))
        assert journal.num_dropped
    until_written(journal)
    live(journal, core, busy_life(driver, 30))
    journal.close(driver.now)
    for name in (OLDER_FILE_NAME, FILE_NAME):
        assert replayed_beyond_gaps(tmp_path / name, driver)
    assert replayed_beyond_gaps(tmp_path / FILE_NAME, driver)[-1] == len(driver.events) - 1


def test_the_end_waits_for_a_stalled_disk_no_longer_than_its_bound(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(beside, "CLOSE_S", 0.1)
    monkeypatch.setattr(beside, "STALLED_S", 0.0)
    driver, journal, core = begun(tmp_path)
    with disk.stalled():
        live(journal, core, busy_life(driver, 5))
        assert disk.stalls.wait(10)
        live(journal, core, busy_life(driver, 5))
        journal.close(driver.now)
    assert "the journal's disk has not answered for 0 s" in caplog.text
    assert "its disk did not answer in 0.1 s" in caplog.text
    journal._file._thread.join(10)  # type: ignore[union-attr]


def test_a_full_disk_is_said_once_and_so_is_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver, journal, core = begun(tmp_path)
    with file_size_limit(1500):
        live(journal, core, busy_life(driver, 30))
        while not journal.num_dropped:
            live(journal, core, busy_life(driver, 1))
    for _ in range(2 * WELL_CHUNKS):
        live(journal, core, busy_life(driver, 1))
    journal.close(driver.now)
    said = [one.getMessage() for one in caplog.records]
    assert [text.partition(",")[0].partition(";")[0] for text in said] == [
        "the journal cannot be written",
        "the journal is written again",
    ]
    assert missing(tmp_path / FILE_NAME) == journal.num_dropped
    assert replayed_beyond_gaps(tmp_path / FILE_NAME, driver)[-1] == len(driver.events) - 1


def test_one_that_was_never_used_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    journal = JournalWriter(tmp_path, 1 << 30, configured(), beside=True)
    journal.close(0.0)
    assert threading.active_count() == before and not list(tmp_path.iterdir())
