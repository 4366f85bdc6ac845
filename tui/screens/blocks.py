"""The KV map: every block of one instance's pool, and its owner."""

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static

from daemon.protocol.control import AskOwners, Closer, SequenceStatus
from tui.blocks import cell_words, heading, legend
from tui.owner_map import OwnerMap
from tui.palette import ink
from tui.reserved import ReservedPanel
from tui.screens.live import LiveScreen
from tui.screens.sequence import SequenceScreen
from tui.watched import Watched


class BlocksScreen(LiveScreen):
    """One instance at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "next(1)", "next"),
        Binding("N", "next(-1)", show=False),
    ]

    def __init__(self, instance: int = 0) -> None:
        super().__init__()
        self.instance = instance
        self.map = OwnerMap()
        self.reserved = ReservedPanel()
        self.words = Static(id="words")
        self._watched = Watched()

    def parts(self) -> Iterable[Widget]:
        """The map, the pool's reservations, and a line on the block under the cursor."""
        yield self.map
        yield self.reserved
        yield self.words

    def on_mount(self) -> None:
        """Give the keys to the map."""
        self.map.focus()

    def chosen_instance(self) -> int | None:
        """The shown instance."""
        return self.instance

    def questions(self, watched: Watched) -> list[Closer]:
        """Ask for the blocks' owners, once there are blocks."""
        pool = watched.instance(self.instance)
        return [AskOwners(self.instance)] if pool is not None and pool.kv_blocks else []

    def show(self, watched: Watched) -> None:
        """Show the pool as it is now."""
        self._watched = watched
        snapshot = watched.snapshot
        if snapshot is None:
            return
        self.instance = min(self.instance, max(0, len(snapshot.instances) - 1))
        pool = watched.instance(self.instance)
        self.map.show(pool, watched.owners.get(self.instance))
        self.reserved.update_from(pool, snapshot.block_size)
        if pool is not None:
            self.map.border_title = heading(pool, self.size.width - 4)
            self.map.border_subtitle = Text("  ").join(legend((pool,)))
        self._say()

    def action_next(self, instances: int) -> None:
        """Show another instance."""
        snapshot = self._watched.snapshot
        if snapshot is not None:
            self.instance = (self.instance + instances) % len(snapshot.instances)
            self.show(self._watched)

    def on_owner_map_moved(self) -> None:
        """Describe the block under the cursor."""
        self._say()

    def on_owner_map_chosen(self, event: OwnerMap.Chosen) -> None:
        """Open the owner's own screen."""
        self.app.push_screen(SequenceScreen(event.sequence))

    def _say(self) -> None:
        pool = self.map.pool
        if pool is None or not self.map.num_cells:
            self.words.update(Text(" no pool yet", ink.muted))
            return
        text = Text(f" {cell_words(pool, self.map.owners, self.map.cursor)}", ink.text)
        sequence = self._watched.sequence(self.map.owner) if self.map.owner >= 0 else None
        if sequence is not None:
            text.append(f"  {_sequence_words(sequence)}", ink.extra)
        self.words.update(text)


def _sequence_words(sequence: SequenceStatus) -> str:
    computed = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
    return (
        f"{sequence.state}, {computed} of {sequence.num_prompt_tokens} prompt tokens, "
        f"{sequence.num_output_tokens} output, {sequence.num_blocks} blocks"
    )
