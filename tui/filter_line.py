"""The line at the bottom that filters the sequences while it is typed."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class FilterLine(Input):
    """Hidden until opened; Enter keeps the filter, Esc clears it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "keep", "keep filter"),
        Binding("escape", "clear", "clear filter"),
    ]

    class Closed(Message):
        """The line is gone; the keys are free again."""

    def __init__(self) -> None:
        super().__init__(placeholder="id, state, instance or place", id="filter", compact=True)

    def open(self) -> None:
        """Show the line and take the keys."""
        self.add_class("-open")
        self.focus()

    def action_keep(self) -> None:
        """Close the line; its filter stays."""
        self.remove_class("-open")
        self.post_message(self.Closed())

    def action_clear(self) -> None:
        """Close the line and show every sequence again."""
        self.value = ""
        self.action_keep()
