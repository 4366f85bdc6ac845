"""The command palette's entries: orders of the sequences, what the daemon can be told, screens."""

from collections.abc import Callable, Iterable
from functools import partial

from textual.app import SystemCommand

from daemon.protocol.control import Role, Snapshot
from tui.format import printable
from tui.ordering import SORTS
from tui.orders import ORDERS, OperatorOrder, drain_order, flip_order, policy_order
from tui.screens.blocks import BlocksScreen
from tui.screens.instance import InstanceScreen
from tui.screens.live import LiveScreen
from tui.screens.sequence import SequenceScreen

MAX_SEQUENCES = 500


def sorts(sort_by: Callable[[str], object]) -> Iterable[SystemCommand]:
    """The orders that sequences can be shown in."""
    for name in SORTS:
        yield SystemCommand(f"Sort: {name}", "the order of the sequences", partial(sort_by, name))


def orders(snapshot: Snapshot, order: Callable[[OperatorOrder], object]) -> Iterable[SystemCommand]:
    """What the daemon can be told now."""
    policies = [policy_order(name) for name in snapshot.policies]
    for one in (*policies, *ORDERS):
        yield SystemCommand(one.title, one.help, partial(order, one))


def between(
    snapshot: Snapshot, confirm: Callable[[OperatorOrder], object]
) -> Iterable[SystemCommand]:
    """What can be ordered of each of several instances; a person is asked whether it is meant."""
    for one in snapshot.instances if len(snapshot.instances) > 1 else ():
        flips = [flip_order(one.name, role.value) for role in Role if role != one.role]
        for order in (*flips, drain_order(one)):
            yield SystemCommand(order.title, order.help, partial(confirm, order))


def places(
    snapshot: Snapshot, open_screen: Callable[[LiveScreen], object]
) -> Iterable[SystemCommand]:
    """The screens of all that the snapshot shows; each is made when it is opened."""

    def opening(screen: Callable[[int], LiveScreen], key: int) -> Callable[[], None]:
        def opened() -> None:
            open_screen(screen(key))

        return opened

    for index, one in enumerate(snapshot.instances):
        name = printable(one.name)
        yield SystemCommand(f"Instance {name}", "its screen", opening(InstanceScreen, index))
        yield SystemCommand(f"KV map of {name}", "its blocks", opening(BlocksScreen, index))
    for sequence in snapshot.sequences[:MAX_SEQUENCES]:
        opened = opening(SequenceScreen, sequence.sequence)
        yield SystemCommand(f"Sequence {sequence.sequence}", "its story", opened)
