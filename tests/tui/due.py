"""The invented daemon with deadlines: two SLO classes, and requests that name their own."""

import msgspec

from daemon.protocol.control import Due, DueNow, Snapshot
from tests.tui import scenario


def with_deadlines(one: Snapshot, extra: int = 0) -> Snapshot:
    """This snapshot with classes; of the scale 1.5, `extra` more missed their deadlines."""
    counted = (Due(0.0, 41, 2), Due(3.0, 1200, 0), Due(1.5, 90, 30 + extra))
    living = (DueNow(1.5, 7, 2, 3, 0.42), DueNow(3.0, 9, 1, 0, 12.5), DueNow(6.0, 0, 1))
    counters = msgspec.structs.replace(one.counters, due=counted)
    return msgspec.structs.replace(one, counters=counters, due=living)


def classes(step: int, extra: int = 0) -> Snapshot:
    """The busy daemon with classes."""
    return with_deadlines(scenario.snapshot(step), extra)
