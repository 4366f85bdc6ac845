"""The entries of the command palette: sort orders, orders to the daemon, screens."""

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
    """The commands to sort sequences."""
    for name in SORTS:
        yield SystemCommand(f"Sort: {name}", "the order of the sequences", partial(sort_by, name))


def orders(snapshot: Snapshot, order: Callable[[OperatorOrder], object]) -> Iterable[SystemCommand]:
    """The commands that order something of the daemon."""
    policies = [policy_order(name) for name in snapshot.policies]
    for entry in (*policies, *ORDERS):
        yield SystemCommand(entry.title, entry.help, partial(order, entry))


def between(
    snapshot: Snapshot, confirm: Callable[[OperatorOrder], object]
) -> Iterable[SystemCommand]:
    """The orders to each of several instances; a person is asked to confirm them."""
    for instance in snapshot.instances if len(snapshot.instances) > 1 else ():
        flips = [flip_order(instance.name, role.value) for role in Role if role != instance.role]
        for order in (*flips, drain_order(instance)):
            yield SystemCommand(order.title, order.help, partial(confirm, order))


def places(
    snapshot: Snapshot, open_screen: Callable[[LiveScreen], object]
) -> Iterable[SystemCommand]:
    """The screens of everything in the snapshot; each is made when it is opened."""

    def opening(screen: Callable[[int], LiveScreen], key: int) -> Callable[[], None]:
        def opened() -> None:
            open_screen(screen(key))

        return opened

    for index, instance in enumerate(snapshot.instances):
        name = printable(instance.name)
        yield SystemCommand(f"Instance {name}", "its screen", opening(InstanceScreen, index))
        yield SystemCommand(f"KV map of {name}", "its blocks", opening(BlocksScreen, index))
    for sequence in snapshot.sequences[:MAX_SEQUENCES]:
        opened = opening(SequenceScreen, sequence.sequence)
        yield SystemCommand(f"Sequence {sequence.sequence}", "its story", opened)
