"""The tree as a table: a row for each instance, and below it, unless folded, its sequences."""

from collections.abc import Callable

from rich.text import Text

from daemon.protocol.control import InstanceStatus, SequenceStatus, Snapshot
from tui.columns import Cell, Column
from tui.format import bar, count, percent, printable, share
from tui.instances import pressure_colour
from tui.keyed_table import KeyedTable
from tui.ordering import SORTS, arranged, next_sort
from tui.palette import ink, state_look
from tui.sequences import COLUMNS as LEAF_COLUMNS

Branch = InstanceStatus | SequenceStatus | None  # None: sequences without an instance
Row = tuple[Branch, bool, int]  # branch or leaf, whether it is folded, rows below it
NOWHERE = -1
_LEAVES = {column.key: column.cell for column in LEAF_COLUMNS}


def _nothing(_instance: InstanceStatus, _width: int) -> Cell:
    return Cell("")


def _leaf(
    key: str, branch: Callable[[InstanceStatus, int], Cell] = _nothing
) -> Callable[[Row, int], Cell]:
    """A column that shows a sequence as the overview does, and an instance by `branch`."""

    def cell(row: Row, width: int) -> Cell:
        what = row[0]
        if isinstance(what, SequenceStatus):
            return _LEAVES[key](what, width)
        return branch(what, width) if what is not None else Cell("")

    return cell


def _name(row: Row, width: int) -> Cell:
    """A branch with its fold and number of rows; a leaf's id, indented."""
    what, folded, below = row
    if isinstance(what, SequenceStatus):
        return Cell(f"   {what.sequence}"[:width], ink.muted)
    name = printable(what.name, width - 10) if what is not None else "nowhere yet"
    return Cell(f"{'▸' if folded else '▾'} {name} ({below})", ink.text)


def _state(row: Row, _width: int) -> Cell:
    what = row[0]
    if what is None:
        return Cell("")
    sign, colour = state_look(what.state)
    return Cell(f"{sign} {what.state}", colour)


def _instance_kv(instance: InstanceStatus, width: int) -> Cell:
    used = share(instance.kv_used, instance.kv_blocks)
    room = width - 6
    text = f"{bar(used, room)} {percent(used)}" if room >= 4 else percent(used)
    return Cell(text, pressure_colour(used))


def _instance_output(instance: InstanceStatus, _width: int) -> Cell:
    return Cell(f"{count(instance.running)} run {count(instance.waiting)} wait", ink.muted)


COLUMNS: list[Column[Row]] = [
    Column("name", "instance", 16, _name, left=True, grow=12),
    Column("state", "state", 11, _state, left=True),
    Column("age", "age", 6, _leaf("age")),
    Column("prompt", "prompt/KV", 13, _leaf("prompt", _instance_kv), grow=14),
    Column("output", "output/max", 13, _leaf("output", _instance_output), grow=20),
    Column("predicted", "pred", 6, _leaf("predicted"), rank=2),
    Column("level", "lv", 2, _leaf("level"), rank=1),
    Column("blocks", "blocks", 8, _leaf("blocks"), grow=2),
    Column("preemptions", "pre", 3, _leaf("preemptions"), rank=1),
]


class TreeTable(KeyedTable[Row]):
    """Branches in the daemon's order, leaves in the chosen order; keys are i0 and s1004."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="tree")
        self.border_title = "instances and their sequences"
        self.sort_name = next(iter(SORTS))
        self._folded: set[int] = set()
        self._snapshot: Snapshot | None = None

    def update_from(self, snapshot: Snapshot) -> None:
        """Show this snapshot."""
        self._snapshot = snapshot
        self.show(self._branches(snapshot))
        subtitle = f"{self.sort_name} · {len(snapshot.sequences)} sequences"
        if self.border_subtitle != subtitle:
            self.border_subtitle = Text(subtitle, ink.muted)

    def fold(self, folded: bool | None) -> None:
        """Fold the branch of the row under the cursor, or unfold it; None: the other way."""
        if self._snapshot is None or not self.rows:
            return
        place = self.cursor
        while not self.rows[place][0].startswith("i"):
            place -= 1
        key = self.rows[place][0]
        number = int(key[1:])
        fold = number not in self._folded if folded is None else folded
        (self._folded.add if fold else self._folded.discard)(number)
        self.cursor_key = key
        self.update_from(self._snapshot)

    def fold_all(self) -> None:
        """Fold all, or unfold all if all are folded."""
        if self._snapshot is None:
            return
        every = {NOWHERE, *range(len(self._snapshot.instances))}
        self._folded = set() if self._folded >= every else every
        self.cursor_key = ""
        self.update_from(self._snapshot)

    def cycle_sort(self) -> None:
        """Sort within each branch by the next order."""
        self.sort_name = next_sort(self.sort_name)
        if self._snapshot is not None:
            self.update_from(self._snapshot)

    def _branches(self, snapshot: Snapshot) -> list[tuple[str, Row]]:
        below: dict[str, list[SequenceStatus]] = {}
        for sequence in arranged(snapshot.sequences, self.sort_name, ""):
            below.setdefault(sequence.instance, []).append(sequence)
        rows: list[tuple[str, Row]] = []
        for index, instance in enumerate(snapshot.instances):
            self._add(rows, index, instance, below.get(instance.name, []))
        if "" in below:
            self._add(rows, NOWHERE, None, below[""])
        return rows

    def _add(
        self,
        rows: list[tuple[str, Row]],
        number: int,
        branch: Branch,
        leaves: list[SequenceStatus],
    ) -> None:
        folded = number in self._folded
        rows.append((f"i{number}", (branch, folded, len(leaves))))
        if not folded:
            rows += [(f"s{leaf.sequence}", (leaf, False, 0)) for leaf in leaves]
