"""The start of a daemon: the stage and progress of each instance."""

from rich.text import Text

from daemon.protocol.control import InstanceStatus, Snapshot
from tui.format import bar, duration, percent, printable
from tui.lines import Lines
from tui.palette import drawn, ink, state_look

_BAR_LIMIT_CELLS = 60
_TEXT_CELLS = 46


def is_loading(snapshot: Snapshot) -> bool:
    """Whether the daemon has nothing to show yet but its instances' loading."""
    return not snapshot.ready and not snapshot.sequences


class LoadingPanel(Lines):
    """Shown in place of the sequences until the daemon is ready."""

    def __init__(self) -> None:
        super().__init__(id="loading")
        self.border_title = "starting"
        self.display = False
        self._snapshot: Snapshot | None = None

    def update_from(self, snapshot: Snapshot) -> None:
        """Show the progress of this snapshot."""
        self._snapshot = snapshot
        self.display = is_loading(snapshot)
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """The daemon's status, then one line per instance."""
        if self._snapshot is None:
            return []
        lines = [
            Text(),
            Text(f"  {printable(self._snapshot.status)}", f"bold {ink.text}"),
            Text(f"  {printable(self._snapshot.root)}", ink.muted),
            Text(),
        ]
        lines += [_line(instance, width) for instance in self._snapshot.instances]
        return lines[:height]


def _line(instance: InstanceStatus, width: int) -> Text:
    sign, colour = state_look(instance.state)
    line = Text(no_wrap=True, end="")
    line.append(f"  {sign} ", colour)
    line.append(f"{printable(instance.name, 12):<13}", ink.text)
    line.append(f"{printable(instance.load_stage or instance.state, 18):<19}", ink.muted)
    left_s = instance.load_left_s
    left = f"  {duration(left_s)} left" if left_s >= 1.0 else ""
    room = min(_BAR_LIMIT_CELLS, max(4, width - _TEXT_CELLS - len(left)))
    line.append_text(drawn(bar(instance.load_fraction, room), ink.info))
    line.append(f" {percent(instance.load_fraction)}", ink.info)
    return line.append(left, ink.muted)
