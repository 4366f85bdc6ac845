"""The instances table: role, device, state, use and speed of each."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import NamedTuple

from rich.text import Text

from daemon.protocol.control import GpuStatus, InstanceStatus, Snapshot
from tui.columns import Cell, Column
from tui.format import bar, bubble_words, count, latency, percent, printable, share, size
from tui.keyed_table import KeyedTable
from tui.palette import ink, role_colour, state_look

NEARLY_FULL, FULL = 0.80, 0.95
HOT_C = 85
NODE = -2
"""The row of an instance's node, in place of a rank."""
FALLBACK = "▼"
"""Marks a state: torch replaces some kernels of this card, slower."""


class InstanceRow(NamedTuple):
    """An instance, and its GPU where it has one with figures; or one of its ranks, or its node."""

    instance: InstanceStatus
    gpu: GpuStatus | None
    rank: int = -1  # one of its ranks, in a row of its own; -1: the instance itself; NODE


def pressure_colour(fraction: float) -> str:
    """Calm below 80 %, amber to 95 %, then red."""
    return ink.bad if fraction >= FULL else ink.warn if fraction >= NEARLY_FULL else ink.main


def _state(row: InstanceRow, _width: int) -> Cell:
    sign, colour = state_look(row.instance.state)
    if row.instance.drained:
        sign, colour = state_look("draining")
        return Cell(
            f"{sign} drained" if row.instance.state == "ready" else f"{sign} {row.instance.state}",
            colour,
        )
    if row.instance.fallbacks:
        return Cell(f"{sign} {row.instance.state} {FALLBACK}", ink.warn)
    return Cell(f"{sign} {row.instance.state}", colour)


def _role(row: InstanceRow, _width: int) -> Cell:
    role = row.instance.pool or row.instance.role
    return Cell(f"{row.instance.role[0]}→{role}" if row.instance.pool else role, role_colour(role))


def _kv(row: InstanceRow, width: int) -> Cell:
    """The share of the KV pool in use; while loading, the progress."""
    instance = row.instance
    if instance.state == "loading":
        done = instance.load_fraction
        return Cell(f"{bar(done, width - 6)} {percent(done)}", ink.info)
    used = share(instance.kv_used, instance.kv_blocks)
    return Cell(f"{bar(used, width - 6)} {percent(used)}", pressure_colour(used))


def _kv_size(row: InstanceRow, _width: int) -> Cell:
    return Cell(size(row.instance.kv_blocks * row.instance.kv_block_bytes), ink.muted)


def _step(row: InstanceRow, _width: int) -> Cell:
    return Cell(latency(row.instance.step_s if row.instance.steps else None))


def _p99(row: InstanceRow, _width: int) -> Cell:
    return Cell(latency(row.instance.step_p99_s or None), ink.muted)


def _batch(row: InstanceRow, _width: int) -> Cell:
    return Cell(f"{row.instance.batch_rows}/{row.instance.batch_tokens}")


def gpu_words(gpu: GpuStatus) -> list[str]:
    """The known figures of a card's driver, in a few words each."""
    words = []
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        words.append(f"{size(gpu.memory_used_bytes)} of {size(gpu.memory_total_bytes)}")
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        words.append(f"{gpu.power_w:.0f}{limit} W")
    if gpu.temperature_c is not None:
        words.append(f"{gpu.temperature_c} °C")
    if gpu.busy_percent is not None:
        words.append(f"{gpu.busy_percent} % busy")
    return words


def _gpu(row: InstanceRow, _width: int) -> Cell:
    """Power and temperature."""
    gpu = row.gpu
    if gpu is None or (gpu.power_w is None and gpu.temperature_c is None):
        return Cell("–", ink.faint)
    power = f"{gpu.power_w:.0f} W" if gpu.power_w is not None else ""
    heat = f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    hot = gpu.temperature_c is not None and gpu.temperature_c >= HOT_C
    return Cell(f"{power} {heat}".strip(), ink.bad if hot else ink.text)


def _or_rank(column: Column[InstanceRow]) -> Column[InstanceRow]:
    """The column, with a rank's name, process, state and memory where these stand, or a node."""

    def cell(row: InstanceRow, width: int) -> Cell:
        if row.rank == NODE:
            node = Cell(printable(row.instance.node or ""), ink.muted)
            return {"name": Cell(" on node", ink.muted), "kv": node}.get(column.key, Cell(""))
        if row.rank < 0:
            return column.cell(row, width)
        rank = row.instance.ranks[row.rank]
        sign, colour = state_look(rank.state)
        cells = {
            "name": Cell(f" rank {row.rank}", ink.muted),
            "device": Cell(f"{rank.device} {rank.pid}".lstrip(), ink.muted),
            "state": Cell(f"{sign} {printable(rank.state)}", colour),
            "kv": Cell(size(rank.memory_bytes), ink.muted),
            "gpu": Cell(bubble_words(row.instance.bubble_of(row.rank)), ink.muted),
        }
        return cells.get(column.key, Cell(""))

    return replace(column, cell=cell)


_OF_INSTANCES: list[Column[InstanceRow]] = [
    Column("name", "instance", 8, lambda r, _: Cell(printable(r.instance.name)), left=True, grow=6),
    Column("role", "role", 7, _role, left=True),
    Column(
        "device", "device", 7, lambda r, _: Cell(printable(r.instance.device), ink.muted), left=True
    ),
    Column("gpu", "GPU", 12, _gpu, rank=1),
    Column("state", "state", 9, _state, left=True, grow=4),
    Column("running", "run", 4, lambda r, _: Cell(count(r.instance.running))),
    Column("waiting", "wait", 4, lambda r, _: Cell(count(r.instance.waiting))),
    Column("kv", "KV used", 12, _kv, grow=20),
    Column("size", "KV pool", 8, _kv_size, rank=3),
    Column("step", "step", 7, _step),
    Column("p99", "p99", 7, _p99, rank=2),
    Column("batch", "seq/tok", 9, _batch),
    Column("flight", "in flight", 9, lambda r, _: Cell(str(r.instance.steps_in_flight)), rank=4),
]
COLUMNS = [_or_rank(column) for column in _OF_INSTANCES]


def rows_of(snapshot: Snapshot) -> list[tuple[str, InstanceRow]]:
    """A row for each instance and, below it, its node or each of its ranks, with their keys."""
    gpus, found = chain(snapshot.gpus, repeat(None)), []
    for index, pair in enumerate(zip(snapshot.instances, gpus, strict=False)):
        row = InstanceRow(*pair)
        found.append((str(index), row))
        if row.instance.node:
            found.append((f"{index}.node", row._replace(rank=NODE)))
        ranks = range(len(row.instance.ranks))
        found += [(f"{index}.{rank}", row._replace(rank=rank)) for rank in ranks]
    return found


def index_of(key: str) -> int:
    """The instance of a row, by its key; that of a rank or a node is its instance."""
    return int(key.partition(".")[0])


def ruled_by(instances: Sequence[InstanceStatus]) -> str:
    """The policies in use, and the swap modes."""
    policies = ", ".join(sorted({printable(instance.policy) for instance in instances}))
    modes = ", ".join(sorted({printable(instance.swap) for instance in instances}))
    return f"policy {policies} · swap {modes}"


def _beside(snapshot: Snapshot) -> str:
    """The placement of several instances, and what is not as without a choice."""
    words = ""
    if len(snapshot.instances) > 1 and snapshot.placement:
        words += f" · placement {printable(snapshot.placement)}"
    admissions = {instance.decode_admission for instance in snapshot.instances} - {"", "greedy"}
    if admissions:
        words += f" · decodes {printable(', '.join(sorted(admissions)))}"
    return words + (" · RAM in 8 bits" if snapshot.compress else "")


class InstancesTable(KeyedTable[InstanceRow]):
    """One row per instance, and below it one per rank where it has several."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, id="instances")
        self.border_title = "instances"
        self._ruled_by = ""

    def update_from(self, snapshot: Snapshot) -> None:
        """Show the snapshot's instances, in the daemon's order."""
        rows = rows_of(snapshot)
        self.hide(frozenset() if any(row.gpu for _, row in rows) else frozenset({"gpu"}))
        self.show(rows)
        text = ruled_by(snapshot.instances) + _beside(snapshot)
        if text != self._ruled_by:
            self._ruled_by = text
            self.border_subtitle = Text(text, ink.muted)
