"""What was journaled is replayed, byte for byte."""

import random
from pathlib import Path

import pytest

from daemon.journal.reader import JournalError, read_records
from daemon.journal.records import FILE_NAME, OLDER_FILE_NAME, Note
from daemon.journal.writer import JournalWriter
from daemon.scheduler.policies import POLICIES
from tests.core import drafting
from tests.core.driver import Driver, configured
from tests.core.traffic import random_life
from tests.journal.life import record, replayed


@pytest.mark.parametrize("seed", range(20))
def test_replay_repeats_every_action(tmp_path: Path, seed: int) -> None:
    driver = random_life(seed, 150)
    assert record(tmp_path, driver).num_dropped == 0
    last = len(driver.events) - 1
    assert replayed(tmp_path / FILE_NAME, driver, last) == len(driver.events)


@pytest.mark.parametrize("seed", range(8))
def test_a_file_begun_in_mid_life_replays_from_its_checkpoint(tmp_path: Path, seed: int) -> None:
    driver = random_life(seed, 100)
    for more in range(6):
        driver.arrive([more, *range(20)], 5)
        driver.settle()  # the Core is idle then, and the journal may rotate
    driver.arrive(list(range(20)), 5)
    record(tmp_path, driver, max_bytes=400)
    assert (tmp_path / OLDER_FILE_NAME).exists()
    assert 0 < replayed(tmp_path / FILE_NAME, driver, len(driver.events) - 1) < len(driver.events)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_drafts_were_worth_outlives_the_file_that_it_was_learned_in(
    tmp_path: Path, policy: str
) -> None:
    chance = random.Random("copies")
    driver = Driver(configured(policy, 1, max_running=6), 60, token_s=1e-3)
    for _ in range(15):
        for _ in range(2):
            driver.arrive([chance.randrange(2) for _ in range(20)], 12)
        for _ in range(40):
            drafting.answer(driver, 0, chance.choice)
            driver.tick()
        driver.settle()
    assert driver.core.counters.drafts
    record(tmp_path, driver, max_bytes=3000)
    assert (tmp_path / OLDER_FILE_NAME).exists()
    assert 0 < replayed(tmp_path / FILE_NAME, driver, len(driver.events) - 1) < len(driver.events)


def test_changed_limits_and_a_drain_outlive_the_file_that_they_came_in(tmp_path: Path) -> None:
    driver = Driver(configured(max_running=1, max_waiting=50), 40)
    driver.arrive(list(range(20)), 5)
    driver.reconfigure(2, 0.005)
    driver.drain()
    driver.settle()
    for more in range(6):
        driver.resume()
        driver.arrive([more, *range(20)], 5)
        driver.settle()
    for more in range(6):
        driver.arrive([more, *range(10)], 5)
    assert driver.rejected, "the changed bound must have mattered"
    record(tmp_path, driver, max_bytes=400)
    assert (tmp_path / OLDER_FILE_NAME).exists()
    assert 0 < replayed(tmp_path / FILE_NAME, driver, len(driver.events) - 1) < len(driver.events)


def test_a_core_that_is_never_idle_begins_a_file_without_replay(tmp_path: Path) -> None:
    driver = Driver(configured(), 40)
    driver.arrive(list(range(20)), 60)
    for _ in range(50):
        driver.answer()
    driver.arrive(list(range(10)), 60)
    record(tmp_path, driver, max_bytes=300)
    assert (tmp_path / OLDER_FILE_NAME).exists()
    records = list(read_records(tmp_path / FILE_NAME))
    assert type(records[1]).__name__ == "Gap"
    assert replayed(tmp_path / FILE_NAME, driver, len(driver.events) - 1) == 0


def test_what_the_core_decided_stands_between_the_events_and_changes_nothing(
    tmp_path: Path,
) -> None:
    driver = random_life(1, 20)
    journal = JournalWriter(tmp_path, 1 << 20, driver.config)
    for event in driver.events:
        journal.append(event)
        journal.note(event.now, "roles: 1:1: better than mixed by 0.25")
    journal.close(driver.now)
    records = list(read_records(tmp_path / FILE_NAME))
    notes = [one for one in records if isinstance(one, Note)]
    assert len(notes) == len(driver.events) and "better than mixed" in notes[0].text
    assert replayed(tmp_path / FILE_NAME, driver, len(driver.events) - 1) == len(driver.events)


def test_a_cut_tail_ends_cleanly(tmp_path: Path) -> None:
    driver = random_life(3, 50)
    record(tmp_path, driver)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    ends = []
    for cut in range(1, 60):
        path.write_bytes(whole[:-cut])
        events = len(list(read_records(path))) - 1
        ends.append(replayed(path, driver, events - 1))
    assert ends[0] == len(driver.events) - 1
    assert ends == sorted(ends, reverse=True) and ends[-1] < ends[0]


@pytest.mark.parametrize(
    "damage", [b"\xff" * 64, b"\x02\x00\x00\x00\x92\x01", b"\x01\x00\x00\x00\xc1"]
)
def test_what_is_no_journal_is_refused(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(damage)
    with pytest.raises(JournalError):
        list(read_records(path))


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    driver = random_life(3, 20)
    record(tmp_path, driver)
    path = tmp_path / FILE_NAME
    name = driver.config.policy.encode()
    path.write_bytes(path.read_bytes().replace(name, b"\xff" * len(name)))
    with pytest.raises(JournalError, match="damaged"):
        list(read_records(path))


def test_a_file_that_begins_with_an_event_is_refused(tmp_path: Path) -> None:
    driver = random_life(3, 20)
    record(tmp_path, driver)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[4 + int.from_bytes(whole[:4], "little") :])
    with pytest.raises(JournalError, match="does not begin"):
        list(read_records(path))
