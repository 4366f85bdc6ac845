"""The overview: gauges beside tables, all on one screen."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from daemon.protocol.control import AskOwners, Closer
from tui.blocks import BlockMap
from tui.chart import Chart
from tui.deadlines import DeadlinesTable
from tui.format import latency, rate
from tui.instances import InstancesTable, index_of
from tui.keyed_table import KeyedTable
from tui.loading import LoadingPanel, is_loading
from tui.moves import MovesLine
from tui.queues import QueuesTable
from tui.screens.instance import InstanceScreen
from tui.screens.live import LiveScreen
from tui.screens.sequence import SequenceScreen
from tui.sequences import SequencesTable
from tui.waiting import WaitingLines
from tui.watched import Watched


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


class OverviewScreen(LiveScreen):
    """Charts, KV blocks, the waiting queue, instances, queues, deadlines, and the sequences."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "app.back", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.output = Chart("tok/s", "main", rate)
        self.ttft = Chart("TTFT", "info", latency)
        self.tpot = Chart("TPOT", "good", latency)
        self.waiting = Chart("waiting", "warn", rate)
        self.blocks = BlockMap()
        self.queue = WaitingLines()
        self.instances = InstancesTable()
        self.moving = MovesLine()
        self.queues = QueuesTable()
        self.deadlines = DeadlinesTable()
        self.sequences = SequencesTable()
        self.loading_panel = LoadingPanel()
        self.filter_line = FilterLine()

    def parts(self) -> Iterable[Widget]:
        """Gauges at the left or above, tables at the right or below."""
        charts = Container(self.output, self.ttft, self.tpot, self.waiting, id="charts")
        yield Container(charts, self.blocks, self.queue, id="gauges")
        yield Container(
            *(self.instances, self.moving, self.queues, self.deadlines),
            *(self.sequences, self.loading_panel),
            id="tables",
        )

    def below(self) -> Iterable[Widget]:
        """The filter line, while it is open."""
        yield self.filter_line

    def on_mount(self) -> None:
        """Give the keys to the sequences."""
        self.sequences.focus()

    def questions(self, watched: Watched) -> list[Closer]:
        """Ask for the owners of the blocks under the mouse."""
        return [AskOwners(index) for index in self.blocks.hovered()]

    def show(self, watched: Watched) -> None:
        """Show the newest snapshot."""
        snapshot, history = watched.snapshot, watched.history
        if snapshot is None:
            return
        rates = history.now()
        self.output.update_from(history.output(), rates.output_tokens_per_s)
        self.ttft.update_from(history.ttft(), rates.ttft_s)
        self.tpot.update_from(history.tpot(), rates.tpot_s)
        self.waiting.update_from(history.waiting(), float(snapshot.waiting))
        self.blocks.update_from(list(enumerate(snapshot.instances)), watched.owners)
        self.queue.update_from(snapshot)
        self.instances.update_from(snapshot)
        self.moving.update_from(snapshot)
        self.queues.update_from(snapshot, history.links())
        self.deadlines.update_from(snapshot, history.deadlines())
        below = any(instance.ranks or instance.node for instance in snapshot.instances)
        self.body.set_class(below, "-ranks")
        self.body.set_class(self.queues.display, "-queues")
        self.body.set_class(self.deadlines.display, "-deadlines")
        self.sequences.update_from(snapshot)
        self.loading_panel.update_from(snapshot)
        self._show_table(not is_loading(snapshot))

    def _show_table(self, shown: bool) -> None:
        """Show the sequences, or the loading panel in their place; the keys return with
        the table.
        """
        if self.sequences.display != shown:
            self.sequences.display = shown
            if shown and not self.filter_line.has_focus:
                self.call_after_refresh(self.sequences.focus)

    def chosen_instance(self) -> int | None:
        """The instance under the cursor, in the table with the keys."""
        table = self.queues if self.queues.has_focus else self.instances
        if not (table.has_focus and table.rows):
            return None
        return index_of(table.rows[table.cursor][0])

    def chosen_sequence(self) -> int | None:
        """The sequence under the cursor, in the table with the keys."""
        table = self.sequences
        return int(table.rows[table.cursor][0]) if table.has_focus and table.rows else None

    def action_sort(self) -> None:
        """Sort the sequences by the next order."""
        self.sequences.cycle_sort()

    def action_filter(self) -> None:
        """Open the filter line."""
        self.filter_line.open()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the person types."""
        self.sequences.filter_by(event.value)

    def on_filter_line_closed(self) -> None:
        """Give the keys back to the table."""
        self.sequences.focus()

    @on(KeyedTable.Chosen, "#sequences")
    def open_sequence(self, event: KeyedTable.Chosen) -> None:
        """Open the sequence's own screen."""
        self.app.push_screen(SequenceScreen(int(event.key)))

    @on(KeyedTable.Chosen, "#instances, #queues")
    def open_instance(self, event: KeyedTable.Chosen) -> None:
        """Open the instance's own screen."""
        self.app.push_screen(InstanceScreen(index_of(event.key)))
