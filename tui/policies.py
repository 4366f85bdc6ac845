"""The choice of a policy from a list."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from daemon.protocol.control import Snapshot
from tui.palette import ink


class PolicyScreen(ModalScreen[str]):
    """Its result is the chosen policy, or "" for none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "leave", "as it is")]

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._names = snapshot.policies
        self._used = {instance.policy for instance in snapshot.instances}

    def compose(self) -> ComposeResult:
        """One box in the middle."""
        options = [Option(self._label(name), id=name) for name in self._names]
        box = OptionList(*options, id="policies")
        box.border_title = "rank sequences by"
        box.border_subtitle = "Enter chooses, Esc leaves it"
        yield box

    def _label(self, name: str) -> Text:
        used = name in self._used
        return Text(f"{'●' if used else ' '} {name}", ink.good if used else ink.text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """This one."""
        self.dismiss(event.option.id or "")

    def action_leave(self) -> None:
        """None of them."""
        self.dismiss("")
