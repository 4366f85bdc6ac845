"""The journal never stops the daemon: what it cannot write it counts, and says where."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.core.core import Core
from daemon.core.values.events import Tick
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME, OLDER_FILE_NAME, Gap
from daemon.journal.writer import FLUSH_BYTES, FLUSH_S, JournalWriter
from daemon.lab.simulator.journal import replay
from tests.core.driver import Driver, configured
from tests.core.traffic import random_life
from tests.journal.life import record, replayed

CONFIG = configured()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """A disk that is full at so many bytes, as the kernel tells it (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_is_written_before_its_time(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, 1 << 20, CONFIG)
    core = Core(CONFIG)
    journal.append(Tick(0.1))
    journal.maintain(core, 0.1)
    assert not (tmp_path / FILE_NAME).exists()
    journal.maintain(core, FLUSH_S)
    assert len(list(read_records(tmp_path / FILE_NAME))) == 2
    while (tmp_path / FILE_NAME).stat().st_size < FLUSH_BYTES:
        journal.append(Tick(FLUSH_S))
    journal.close(FLUSH_S)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_new_life_keeps_the_one_before(tmp_path: Path) -> None:
    first = random_life(1, 40)
    record(tmp_path, first)
    record(tmp_path, random_life(2, 40))
    assert replayed(tmp_path / OLDER_FILE_NAME, first, len(first.events) - 1) == len(first.events)


def test_a_folder_that_cannot_be_made_costs_events_only(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.write_text("a file stands in the way")
    driver = Driver(CONFIG, 20)
    journal = JournalWriter(folder, 1 << 20, CONFIG)
    core = Core(CONFIG)
    for event in driver.events:
        journal.append(event)
        core.handle(event)
    journal.maintain(core, 2.0)
    assert journal.num_dropped == len(driver.events) and journal.error
    folder.unlink()
    journal.append(Tick(3.0))
    journal.maintain(core, 3.0)
    journal.append(Tick(4.0))
    journal.close(4.0)
    records = list(read_records(folder / FILE_NAME))
    assert Gap(1) in records
    assert [event for event, _ in replay(records)] == [Tick(3.0), Tick(4.0)], "from the checkpoint"


def test_a_full_disk_leaves_whole_frames_and_a_gap(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, 1 << 20, CONFIG)
    core = Core(CONFIG)
    now = 0.0
    with file_size_limit(500):
        for _ in range(200):
            now += 0.1
            journal.append(Tick(now))
            core.handle(Tick(now))
            journal.maintain(core, now)
    path = tmp_path / FILE_NAME
    dropped = journal.num_dropped
    assert 0 < dropped < 200 and path.stat().st_size <= 500
    before = sum(isinstance(one, Tick) for one in read_records(path))
    journal.append(Tick(now + 1))
    journal.close(now + 1)
    records = list(read_records(path))
    after = sum(isinstance(one, Tick) for one in records)
    assert sum(one.num_dropped for one in records if isinstance(one, Gap)) == journal.num_dropped
    assert before <= after and after + journal.num_dropped == 201
