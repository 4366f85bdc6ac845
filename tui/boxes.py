"""Boxes above the screens that ask a person: to choose, or to confirm."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from tui.orders import OperatorOrder
from tui.palette import ink


class ChoiceScreen(ModalScreen[int]):
    """Its result is the index of the choice, or -1 for none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "as it is")]

    def __init__(self, title: str, labels: Sequence[str], current: int = -1) -> None:
        super().__init__()
        self._title, self._labels, self._current = title, labels, current

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        box = OptionList(*map(self._option, range(len(self._labels))), id="choices")
        box.border_title = Text(self._title)
        box.border_subtitle = "Enter chooses, Esc leaves it"
        yield box

    def _option(self, place: int) -> Option:
        used = place == self._current
        label = f"{'●' if used else ' '} {self._labels[place]}"
        return Option(Text(label, ink.good if used else ink.text))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(event.option_index)

    def action_leave(self) -> None:
        """None of them."""
        self.dismiss(-1)


class ConfirmScreen(ModalScreen[bool]):
    """Asks to confirm an order: y or Enter confirms it, its other keys cancel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, order: OperatorOrder) -> None:
        super().__init__()
        self._order = order

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        box = Static(Text(self._order.help, ink.text), id="confirm")
        box.border_title = Text(f"{self._order.title}?")
        box.border_subtitle = "y or Enter: yes, Esc: no"
        yield box

    def action_answer(self, meant: bool) -> None:
        """Yes or no."""
        self.dismiss(meant)
