"""Repeats what a Core did, from its journal."""

from collections.abc import Callable, Iterable, Iterator

from daemon.core.actions import Action
from daemon.core.checkpoint import Checkpoint, restore
from daemon.core.core import Core
from daemon.core.events import Configured, Event
from daemon.journal.records import Gap, Note, Record


def replay(
    records: Iterable[Record], begun: Callable[[Core], None] = lambda _core: None
) -> Iterator[tuple[Event, list[Action]]]:
    """Each event with the actions that the Core answered it with, exactly as it did then.

    Events between a gap and the next checkpoint are left out: what came of them is not known.
    `begun` is told of each Core that the events after it are given to.
    """
    config: Configured | None = None
    core: Core | None = None
    for record in records:
        if isinstance(record, Configured):
            config = record
            core = Core(record)
            begun(core)
        elif isinstance(record, Gap):
            core = None
        elif isinstance(record, Checkpoint):
            if config is None:
                raise ValueError("a checkpoint without a configuration before it")
            core = Core(config)
            restore(core, record)
            begun(core)
        elif core is not None and not isinstance(record, Note):
            yield record, core.handle(record)
