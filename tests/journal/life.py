"""Writing a life down, and comparing a replay with it."""

from collections.abc import Sequence
from pathlib import Path

from daemon.core.core import Core
from daemon.core.values.actions import Action
from daemon.core.values.events import Event
from daemon.journal.reader import read_records
from daemon.journal.writer import JournalWriter
from daemon.lab.simulator.journal import replay
from daemon.wire.columns import encoder
from tests.core.driver import Driver


def in_bytes(actions: Sequence[Action]) -> bytes:
    return encoder().encode(actions)


def record(
    folder: Path, driver: Driver, max_bytes: int = 1 << 30, beside: bool = False
) -> JournalWriter:
    """Journal a life as the runtime does: each event before the Core takes it."""
    journal = JournalWriter(folder, max_bytes, driver.config, beside)
    live(journal, Core(driver.config), driver.events)
    journal.close(driver.now)
    return journal


def live(journal: JournalWriter, core: Core, events: Sequence[Event]) -> None:
    """A stretch of a life."""
    for event in events:
        journal.append(event)
        core.handle(event)
        journal.maintain(core, event.now)


def replayed(path: Path, driver: Driver, last: int) -> int:
    """How many events a file replays; they must be those that end with number `last`."""
    encode = encoder().encode
    life = list(replay(read_records(path)))
    for number, (event, actions) in enumerate(life, last + 1 - len(life)):
        assert encode(event) == encode(driver.events[number])
        assert in_bytes(actions) == in_bytes(driver.actions[number]), f"event {number}"
    return len(life)


def replayed_beyond_gaps(path: Path, driver: Driver) -> list[int]:
    """The numbers of the events that a file replays; each must be what it was, in its order."""
    encode = encoder().encode
    written = [encode(event) for event in driver.events]
    numbers = [-1]
    for event, actions in replay(read_records(path)):
        numbers.append(written.index(encode(event), numbers[-1] + 1))
        assert in_bytes(actions) == in_bytes(driver.actions[numbers[-1]]), f"event {numbers[-1]}"
    return numbers[1:]
