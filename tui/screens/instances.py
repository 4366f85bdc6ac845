"""The instances: one card each, and below them the transfers and flips."""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from tui.cards import CardGrid
from tui.moves import MovesPanel
from tui.screens.instance import InstanceScreen
from tui.screens.live import LiveScreen
from tui.watched import Watched


class CardsScreen(LiveScreen):
    """Cards above, transfers and flips below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "app.flip", "flip"),
        Binding("d", "app.drain", "drain"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.cards = CardGrid()
        self.moves = MovesPanel()
        self._watched: Watched | None = None

    def parts(self) -> Iterable[Widget]:
        """The cards, and the transfers and flips."""
        yield self.cards
        yield self.moves

    def on_mount(self) -> None:
        """Give the keys to the cards."""
        self.cards.focus()

    def on_resize(self) -> None:
        """Lay the cards out for the new size."""
        if self._watched is not None:
            self.call_after_refresh(self.show, self._watched)

    def show(self, watched: Watched) -> None:
        """Show all instances as they are now."""
        self._watched = watched
        if watched.snapshot is not None:
            self.cards.update_from(watched.snapshot, *self.body.size)
            self.moves.update_from(watched.snapshot)

    def chosen_instance(self) -> int | None:
        """The instance under the cursor."""
        return self.cards.cursor

    def on_card_grid_chosen(self, event: CardGrid.Chosen) -> None:
        """Open the instance's own screen."""
        self.app.push_screen(InstanceScreen(event.instance))
