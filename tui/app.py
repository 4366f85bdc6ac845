"""`llmd-top`: the dashboard, or one plain frame of it."""

import argparse
import sys
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Footer, Input

from daemon.control.client import ControlError, attach_path, fetch_snapshot
from daemon.control.protocol import Snapshot
from tui.banner import Banner
from tui.blocks import BlockMap
from tui.chart import Chart
from tui.client import Disconnected, follow
from tui.filter_line import FilterLine
from tui.format import latency, rate
from tui.header import Header
from tui.help import HelpScreen
from tui.instances import InstancesTable
from tui.loading import LoadingPanel, is_loading
from tui.palette import BLUE, TEAL, THEME, VIOLET
from tui.plain import frame
from tui.queues import QueuesTable
from tui.rates import History
from tui.sequences import SequencesTable
from tui.style import CSS as STYLE
from tui.waiting import WaitingQueue

WATCH_INTERVAL_S = 0.5
REFRESH_INTERVAL_S = 0.25  # at most four frames a second, however often snapshots come


class LlmdTop(App[None]):
    """Follows the daemon at `path`; shows the newest snapshot, and that there is none."""

    TITLE = "llmd-top"
    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("question_mark", "help", "help", key_display="?"),
    ]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.register_theme(THEME)
        self.theme = THEME.name
        self.paused = False
        self.history = History()
        self.header = Header()
        self.banner = Banner()
        self.body = Container(id="body")
        self.output = Chart("output tok/s", TEAL, rate)
        self.prompt = Chart("prompt tok/s", VIOLET, rate)
        self.ttft = Chart("TTFT", BLUE, latency)
        self.blocks = BlockMap()
        self.queue = WaitingQueue()
        self.instances = InstancesTable()
        self.queues = QueuesTable()
        self.sequences = SequencesTable()
        self.loading_panel = LoadingPanel()
        self.filter_line = FilterLine()
        self._path = path
        self._newest: Snapshot | None = None
        self._shown: Snapshot | None = None
        self._lost: Disconnected | None = None

    def compose(self) -> ComposeResult:
        """Header, gauges and tables, and the keys below."""
        yield self.header
        yield self.banner
        with self.body:
            with Container(id="gauges"):
                yield Container(self.output, self.prompt, self.ttft, id="charts")
                yield self.blocks
                yield self.queue
            with Container(id="tables"):
                yield self.instances
                yield self.queues
                yield self.sequences
                yield self.loading_panel
        yield self.filter_line
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start to follow, and to show what was heard."""
        self.sequences.focus()
        self.run_worker(self._follow(), exclusive=True)
        self.set_interval(REFRESH_INTERVAL_S, self._show_newest)

    async def _follow(self) -> None:
        async for news in follow(self._path, WATCH_INTERVAL_S):
            if isinstance(news, Disconnected):
                self._lost = news
            else:
                self._lost = None
                self._newest = news
                self.history.add(news)

    def _show_newest(self) -> None:
        """Bring the screen up to date, if something new was heard and nobody paused it."""
        if not self.body.is_attached:
            return
        self.banner.update_from(self._lost)
        self.header.mark(connected=self._lost is None, paused=self.paused)
        self.body.set_class(self._lost is not None, "-stale")
        snapshot = self._newest
        if snapshot is None or snapshot is self._shown or self.paused:
            return
        self._shown = snapshot
        with self.batch_update():
            self._show(snapshot)

    def _show(self, snapshot: Snapshot) -> None:
        rates = self.history.now()
        self.header.update_from(snapshot, rates)
        self.output.update_from(self.history.output(), rates.output_tokens_per_s)
        self.prompt.update_from(self.history.prompt(), rates.prompt_tokens_per_s)
        self.ttft.update_from(self.history.ttft(), rates.ttft_s)
        self.blocks.update_from(snapshot.instances)
        self.queue.update_from(snapshot)
        self.instances.update_from(snapshot.instances)
        self.queues.update_from(snapshot, self.history.links())
        self.body.set_class(self.queues.display, "-queues")
        self.sequences.update_from(snapshot)
        self.loading_panel.update_from(snapshot)
        self._show_table(not is_loading(snapshot))

    def _show_table(self, shown: bool) -> None:
        """The sequences, or the loading panel in their place; the keys come back with the table."""
        if self.sequences.display != shown:
            self.sequences.display = shown
            if shown and not self.filter_line.has_focus:
                self.call_after_refresh(self.sequences.focus)

    def action_pause(self) -> None:
        """Hold the picture, or let it move again."""
        self.paused = not self.paused
        self._show_newest()

    def action_sort(self) -> None:
        """Sort the sequences by the next order."""
        self.sequences.cycle_sort()

    def action_filter(self) -> None:
        """Open the filter line."""
        self.filter_line.open()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the person types."""
        self.sequences.filter_by(event.value)

    def on_filter_line_closed(self) -> None:
        """Give the keys back to the table."""
        self.sequences.focus()


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmd-top", description="Watch a running llmd daemon.")
    parser.add_argument("-1", dest="once", action="store_true", help="print one plain frame, exit")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="the daemon's control socket")
    return parser.parse_args(argv)


def _run(path: Path) -> int:
    if not sys.stdin.isatty():
        print("llmd-top: this is no terminal; llmd-top -1 prints one plain frame", file=sys.stderr)
        return 1
    app = LlmdTop(path)
    app.run()
    return app.return_code or 0


def main(argv: list[str] | None = None) -> int:
    """The program; 1 if there is no terminal, or no daemon for `-1`."""
    arguments = _arguments(argv)
    path = arguments.socket or attach_path()
    if not arguments.once:
        return _run(path)
    try:
        print(frame(fetch_snapshot(path)))
    except ControlError as error:
        print(f"llmd-top: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
