"""The instances table: who serves, on which device, how full and how fast."""

from collections.abc import Sequence

from rich.text import Text

from daemon.control.protocol import InstanceStatus
from tui.format import bar, count, latency, percent, printable, share, size
from tui.keyed_table import Cell, Column, KeyedTable
from tui.palette import AMBER, BLUE, MUTED, RED, ROLE_COLOUR, TEAL, TEXT, state_look

NEARLY_FULL, FULL = 0.80, 0.95


def used_blocks(instance: InstanceStatus) -> int:
    """Blocks that some sequence or step still needs."""
    return instance.kv_held + instance.kv_fenced


def pressure_colour(fraction: float) -> str:
    """Calm below 80 %, amber to 95 %, then red."""
    return RED if fraction >= FULL else AMBER if fraction >= NEARLY_FULL else TEAL


def _state(instance: InstanceStatus, _width: int) -> Cell:
    sign, colour = state_look(instance.state)
    return Cell(f"{sign} {instance.state}", colour)


def _role(instance: InstanceStatus, _width: int) -> Cell:
    return Cell(instance.role, ROLE_COLOUR.get(instance.role, TEXT))


def _kv(instance: InstanceStatus, width: int) -> Cell:
    """The share of the KV pool in use; while loading, how far the load is."""
    if instance.state == "loading":
        done = instance.load_fraction
        return Cell(f"{bar(done, width - 6)} {percent(done)}", BLUE)
    used = share(used_blocks(instance), instance.kv_blocks)
    return Cell(f"{bar(used, width - 6)} {percent(used)}", pressure_colour(used))


def _kv_size(instance: InstanceStatus, _width: int) -> Cell:
    return Cell(size(instance.kv_blocks * instance.kv_block_bytes), MUTED)


def _step(instance: InstanceStatus, _width: int) -> Cell:
    return Cell(latency(instance.step_s if instance.steps else None))


def _batch(instance: InstanceStatus, _width: int) -> Cell:
    return Cell(f"{instance.batch_rows}/{instance.batch_tokens}")


COLUMNS: list[Column[InstanceStatus]] = [
    Column("name", "instance", 8, lambda i, _: Cell(printable(i.name)), left=True, grow=6),
    Column("role", "role", 7, _role, left=True),
    Column("device", "device", 7, lambda i, _: Cell(printable(i.device), MUTED), left=True),
    Column("state", "state", 9, _state, left=True, grow=4),
    Column("running", "run", 4, lambda i, _: Cell(count(i.running))),
    Column("waiting", "wait", 4, lambda i, _: Cell(count(i.waiting))),
    Column("kv", "KV used", 12, _kv, grow=20),
    Column("size", "KV pool", 8, _kv_size, rank=3),
    Column("step", "step", 7, _step),
    Column("batch", "seq/tok", 9, _batch),
    Column("flight", "in flight", 9, lambda i, _: Cell(str(i.steps_in_flight)), rank=4),
]


def ruled_by(instances: Sequence[InstanceStatus]) -> str:
    """Which policies decide, and what becomes of a sequence that gives way."""
    policies = ", ".join(sorted({printable(instance.policy) for instance in instances}))
    modes = ", ".join(sorted({printable(instance.swap) for instance in instances}))
    return f"policy {policies} · swap {modes}"


class InstancesTable(KeyedTable[InstanceStatus]):
    """One row an instance."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="instances")
        self.border_title = "instances"
        self.can_focus = True
        self._ruled_by = ""

    def update_from(self, instances: tuple[InstanceStatus, ...]) -> None:
        """Show these instances, in the daemon's order."""
        self.show([(str(index), instance) for index, instance in enumerate(instances)])
        text = ruled_by(instances)
        if text != self._ruled_by:
            self._ruled_by = text
            self.border_subtitle = Text(text, MUTED)
