"""The command palette's entries: screens, sequences' orders, and what the daemon can be told."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from tui.format import printable
from tui.ordering import SORTS
from tui.orders import ORDERS, policy_order
from tui.screens.blocks import BlocksScreen
from tui.screens.instance import InstanceScreen
from tui.screens.sequence import SequenceScreen

if TYPE_CHECKING:
    from tui.dashboard import LlmdTop

MAX_SEQUENCES = 500


def commands(app: "LlmdTop") -> Iterable[SystemCommand]:
    """All that can be done now."""
    yield SystemCommand("Pause", "hold the picture, or let it move again", app.action_pause)
    yield SystemCommand("Tree", "instances and their sequences", partial(app.action_open, "tree"))
    yield SystemCommand("KV map", "whose each block is", partial(app.action_open, "blocks"))
    for name in SORTS:
        sort = partial(app.overview.sequences.sort_by, name)
        yield SystemCommand(f"Sort: {name}", "the order of the sequences", sort)
    yield from _orders(app)
    yield from _places(app)


def _orders(app: "LlmdTop") -> Iterable[SystemCommand]:
    snapshot = app.watched.newest
    if not app.may_order or snapshot is None:
        return
    policies = [policy_order(name) for name in snapshot.policies]
    for order in (*policies, *ORDERS):
        yield SystemCommand(order.title, order.help, partial(app.order, order))


def _places(app: "LlmdTop") -> Iterable[SystemCommand]:
    snapshot = app.watched.snapshot
    if snapshot is None:
        return
    for index, one in enumerate(snapshot.instances):
        name = printable(one.name)
        yield SystemCommand(
            f"Instance {name}", "its screen", partial(app.push_screen, InstanceScreen(index))
        )
        yield SystemCommand(
            f"KV map of {name}", "its blocks", partial(app.push_screen, BlocksScreen(index))
        )
    for sequence in snapshot.sequences[:MAX_SEQUENCES]:
        opened = partial(_open_sequence, app, sequence.sequence)
        yield SystemCommand(f"Sequence {sequence.sequence}", "its story", opened)


def _open_sequence(app: "LlmdTop", sequence: int) -> None:
    app.push_screen(SequenceScreen(sequence))
