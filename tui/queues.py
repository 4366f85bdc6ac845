"""The queues table: each instance's queue levels, its host pool and its swap link."""

from collections.abc import Sequence
from typing import NamedTuple

from daemon.protocol.control import InstanceStatus, Snapshot
from tui.chart import chart_lines
from tui.columns import Cell, Column
from tui.format import bar, count, percent, printable, share, size
from tui.instances import pressure_colour
from tui.keyed_table import KeyedTable
from tui.palette import ink
from tui.rates import LinkRates
from tui.reserved import queue_words

_EMPTY_LEVEL = "·"


def _unknown() -> Cell:
    return Cell("–", ink.faint)


class QueueRow(NamedTuple):
    """An instance, and its swap link's recent rates."""

    instance: InstanceStatus
    link: LinkRates


def has_queues(instance: InstanceStatus) -> bool:
    """Whether there is anything to show: levels, a second queue, or a host pool."""
    several = bool(instance.levels) or instance.reserved is not None
    return several or instance.host_blocks > 0


def level_bars(levels: Sequence[int]) -> str:
    """One cell per level, as high as its share of the fullest; empty levels at the end
    are dropped.
    """
    used = max((level + 1 for level, number in enumerate(levels) if number), default=0)
    row = chart_lines(levels[:used], max(levels, default=0), used, 1)[0]
    return row.replace(" ", _EMPTY_LEVEL)


def level_counts(levels: Sequence[int]) -> str:
    """`level:sequences` of the levels that have any."""
    return " ".join(f"{level}:{number}" for level, number in enumerate(levels) if number)


def _levels(row: QueueRow, _width: int) -> Cell:
    levels = row.instance.levels
    if not levels and (both := queue_words(row.instance)):
        return Cell(both)
    if not levels:
        return _unknown()
    if not any(levels):
        return Cell("empty", ink.faint)
    return Cell(f"{level_bars(levels)} {level_counts(levels)}")


def _host(row: QueueRow, width: int) -> Cell:
    """The share of the host pool that holds blocks of sequences."""
    instance = row.instance
    if not instance.host_blocks:
        return _unknown()
    used = share(instance.host_held, instance.host_blocks)
    return Cell(f"{bar(used, width - 6)} {percent(used)}", pressure_colour(used))


def _pool(row: QueueRow, _width: int) -> Cell:
    return Cell(f"{count(row.instance.host_held)}/{count(row.instance.host_blocks)}", ink.muted)


def _link(row: QueueRow, _width: int) -> Cell:
    busy = row.link.busy
    if busy is None:
        return _unknown()
    return Cell(percent(busy), pressure_colour(busy) if busy else ink.faint)


def _rate(bytes_per_s: float | None, colour: str) -> Cell:
    if bytes_per_s is None:
        return _unknown()
    return Cell(f"{size(bytes_per_s)}/s", colour if bytes_per_s else ink.faint)


COLUMNS: list[Column[QueueRow]] = [
    Column("name", "instance", 8, lambda r, _: Cell(printable(r.instance.name)), left=True, grow=6),
    Column("levels", "levels", 27, _levels, left=True, grow=60),
    Column("host", "host used", 9, _host, grow=20),
    Column("pool", "blocks", 13, _pool, rank=1),
    Column("link", "link", 5, _link),
    Column("out", "out", 10, lambda r, _: _rate(r.link.out_bytes_per_s, ink.warn)),
    Column("in", "in", 10, lambda r, _: _rate(r.link.in_bytes_per_s, ink.info)),
]


class QueuesTable(KeyedTable[QueueRow]):
    """One row per instance that has levels, two queues or a host pool; hidden where none has."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="queues")
        self.border_title = "queues and swapping"
        self.display = False

    def update_from(self, snapshot: Snapshot, links: Sequence[LinkRates]) -> None:
        """Show these instances; `links` are their rates in the same order, as far as known."""
        known = [*links, *[LinkRates()] * len(snapshot.instances)]
        pairs = zip(snapshot.instances, known, strict=False)
        rows = [QueueRow(*pair) for pair in pairs if has_queues(pair[0])]
        self.display = bool(rows)
        self.show([(str(index), row) for index, row in enumerate(rows)])
