"""The start of a daemon as progress: what each instance does and how far it is."""

from rich.text import Text
from textual.widget import Widget

from daemon.control.protocol import InstanceStatus, Snapshot
from tui.format import bar, percent, printable
from tui.palette import BLUE, MUTED, TEXT, drawn, state_look

_BAR_LIMIT_CELLS = 60
_TEXT_CELLS = 46


def is_loading(snapshot: Snapshot) -> bool:
    """Whether the daemon has nothing to show yet but its instances' loading."""
    return not snapshot.ready and not snapshot.sequences


class LoadingPanel(Widget):
    """Stands in the sequences' place until the daemon is ready."""

    def __init__(self) -> None:
        super().__init__(id="loading")
        self.border_title = "starting"
        self.display = False
        self._snapshot: Snapshot | None = None

    def update_from(self, snapshot: Snapshot) -> None:
        """Show the progress of this snapshot."""
        self._snapshot = snapshot
        self.display = is_loading(snapshot)
        self.refresh()

    def render(self) -> Text:
        """The daemon's own words, then a line an instance."""
        if self._snapshot is None:
            return Text()
        lines = [
            Text(),
            Text(f"  {printable(self._snapshot.status)}", f"bold {TEXT}"),
            Text(f"  {printable(self._snapshot.root)}", MUTED),
            Text(),
        ]
        lines += [_line(instance, self.size.width) for instance in self._snapshot.instances]
        return Text("\n").join(lines)


def _line(instance: InstanceStatus, width: int) -> Text:
    sign, colour = state_look(instance.state)
    line = Text(no_wrap=True, end="")
    line.append(f"  {sign} ", colour)
    line.append(f"{printable(instance.name, 12):<13}", TEXT)
    line.append(f"{printable(instance.load_stage or instance.state, 18):<19}", MUTED)
    room = min(_BAR_LIMIT_CELLS, max(4, width - _TEXT_CELLS))
    line.append_text(drawn(bar(instance.load_fraction, room), BLUE))
    return line.append(f" {percent(instance.load_fraction)}", BLUE)
