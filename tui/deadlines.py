"""The deadlines table: kept and missed ones by SLO class, and the state of live requests."""

from collections.abc import Mapping
from typing import NamedTuple

from daemon.protocol.control import Due, DueNow, Snapshot
from tui.columns import Cell, Column
from tui.format import bar, count, duration, percent, share
from tui.keyed_table import KeyedTable
from tui.palette import ink

GOOD_SHARE, POOR_SHARE = 0.95, 0.8
SOON_S = 1.0


class DueRow(NamedTuple):
    """An SLO class since the start, lately, and now."""

    counted: Due
    lately: Due
    now: DueNow


def due_rows(snapshot: Snapshot, lately: Mapping[float, Due]) -> list[DueRow]:
    """Every class with counts or live requests; requests' own deadlines come before the scales."""
    counted = {due.scale: due for due in snapshot.counters.due}
    living = {due.scale: due for due in snapshot.due}
    return [
        DueRow(
            counted.get(scale) or Due(scale),
            lately.get(scale) or Due(scale),
            living.get(scale) or DueNow(scale),
        )
        for scale in sorted(counted.keys() | living.keys())
    ]


def scale_words(scale: float) -> str:
    """A class in the words of `llmd:deadlines_total`."""
    return f"{scale:g} x" if scale else "request"


def kept_share(due: Due) -> float | None:
    """The share of counted deadlines that were kept; None: none was counted."""
    total = due.kept + due.missed
    return share(due.kept, total) if total else None


def left_words(left_s: float) -> str:
    """The time until a deadline, or since."""
    return f"{duration(abs(left_s))} {'left' if left_s >= 0 else 'late'}"


def due_line(row: DueRow) -> str:
    """One class in one line, since the start and now."""
    words = f"{scale_words(row.counted.scale)}: {count(row.counted.kept)} kept, "
    words += f"{count(row.counted.missed)} missed"
    if (kept := kept_share(row.counted)) is not None:
        words += f" ({percent(kept).strip()} kept)"
    now = row.now
    if now.running or now.waiting:
        words += f"; {now.running} running, {now.waiting} waiting"
        words += f", {now.late} late" if now.late else ""
    if now.least_left_s is not None:
        words += f", the first {left_words(now.least_left_s)}"
    return words


def _counted(number: int, colour: str) -> Cell:
    return Cell(count(number), colour if number else ink.faint)


def _lately(row: DueRow, width: int) -> Cell:
    """The share that was kept, with a bar."""
    kept = kept_share(row.lately)
    if kept is None:
        return Cell("–", ink.faint)
    colour = ink.good if kept >= GOOD_SHARE else ink.warn if kept >= POOR_SHARE else ink.bad
    return Cell(f"{bar(kept, width - 6)} {percent(kept)}", colour)


def _first(row: DueRow, _width: int) -> Cell:
    left_s = row.now.least_left_s
    if left_s is None:
        return Cell("–", ink.faint)
    return Cell(duration(left_s), ink.warn if left_s < SOON_S else ink.text)


COLUMNS: list[Column[DueRow]] = [
    Column("class", "class", 8, lambda r, _: Cell(scale_words(r.counted.scale)), left=True),
    Column("kept", "kept", 6, lambda r, _: _counted(r.counted.kept, ink.good)),
    Column("missed", "missed", 6, lambda r, _: _counted(r.counted.missed, ink.bad)),
    Column("lately", "kept lately", 11, _lately, grow=20),
    Column("running", "running", 7, lambda r, _: _counted(r.now.running, ink.good)),
    Column("waiting", "waiting", 7, lambda r, _: _counted(r.now.waiting, ink.warn)),
    Column("late", "late", 5, lambda r, _: _counted(r.now.late, ink.bad)),
    Column("first", "first due", 9, _first),
]


class DeadlinesTable(KeyedTable[DueRow]):
    """One row per class; hidden where no request has or had a deadline."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="deadlines")
        self.border_title = "deadlines"
        self.display = False

    def update_from(self, snapshot: Snapshot, lately: Mapping[float, Due]) -> None:
        """Show this snapshot's deadlines; `lately`: recent counts, by scale."""
        rows = due_rows(snapshot, lately)
        self.display = bool(rows)
        self.show([(scale_words(row.counted.scale), row) for row in rows])
