"""The tree: instances, and below each the sequences that run on it and wait for it."""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from tui.branches import TreeTable
from tui.keyed_table import KeyedTable
from tui.screens.instance import InstanceScreen
from tui.screens.live import LiveScreen
from tui.screens.sequence import SequenceScreen
from tui.watched import Watched


class TreeScreen(LiveScreen):
    """One foldable table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "fold", "fold"),
        Binding("left", "fold(True)", show=False),
        Binding("right", "fold(False)", show=False),
        Binding("f", "fold_all", "fold all"),
        Binding("s", "sort", "sort"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.branches = TreeTable()

    def parts(self) -> Iterable[Widget]:
        """The table."""
        yield self.branches

    def on_mount(self) -> None:
        """Give the keys to the table."""
        self.branches.focus()

    def show(self, watched: Watched) -> None:
        """Show every branch that is not folded."""
        if watched.snapshot is not None:
            self.branches.update_from(watched.snapshot)

    def chosen_instance(self) -> int | None:
        """The branch under the cursor."""
        return self._chosen("i")

    def chosen_sequence(self) -> int | None:
        """The leaf under the cursor."""
        return self._chosen("s")

    def _chosen(self, kind: str) -> int | None:
        rows = self.branches.rows
        key = rows[self.branches.cursor][0] if rows else ""
        return int(key[1:]) if key.startswith(kind) and int(key[1:]) >= 0 else None

    def action_fold(self, folded: bool | None = None) -> None:
        """Fold or unfold the branch under the cursor."""
        self.branches.fold(folded)

    def action_fold_all(self) -> None:
        """Fold all branches, or unfold them where all are folded."""
        self.branches.fold_all()

    def action_sort(self) -> None:
        """Sort within each branch by the next order."""
        self.branches.cycle_sort()

    def on_keyed_table_chosen(self, event: KeyedTable.Chosen) -> None:
        """Open the row under the cursor."""
        kind, number = event.key[0], int(event.key[1:])
        screen = InstanceScreen(number) if kind == "i" else SequenceScreen(number)
        if number >= 0:
            self.app.push_screen(screen)
