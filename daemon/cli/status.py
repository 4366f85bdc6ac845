"""`llmd ctl status`: a snapshot as one JSON object, or as a few lines."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from daemon.cli.roles_text import roles_lines
from daemon.protocol.control import (
    ExpertStatus,
    FlipStatus,
    InstanceStatus,
    KindStatus,
    ReservedStatus,
    Snapshot,
    StateStatus,
    TransferStatus,
)
from daemon.state.role import WATCHED

MAX_ROWS = 8
"""How many transfers, and flips, are listed."""


def as_json(snapshot: Snapshot) -> str:
    """The whole snapshot as one JSON object: columns become lists, array-like structs become
    objects, and each instance lists the transfers that it sends or receives.
    """
    plain = msgspec.to_builtins(snapshot, enc_hook=_column_as_list)
    plain["counters"]["due"] = _objects(snapshot.counters.due)
    plain["roles"]["expected"] = _objects(snapshot.roles.expected)
    for name in ("sequences", "transfers", "flips"):
        plain[name] = _objects(getattr(snapshot, name))
    for instance, status in zip(plain["instances"], snapshot.instances, strict=True):
        instance["ranks"] = _objects(status.ranks)
        if status.reserved is not None:
            instance["reserved"] = _reserved(status.reserved)
        instance["transfers"] = [
            transfer
            for transfer in plain["transfers"]
            if instance["name"] in (transfer["source"], transfer["target"])
        ]
    return msgspec.json.format(msgspec.json.encode(plain).decode(), indent=2)


def _objects(structs: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(struct) for struct in structs]


def _reserved(reserved: ReservedStatus) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(reserved)
    plain["groups"] = _objects(reserved.groups)
    if reserved.lending is not None:
        plain["lending"]["shown"] = _objects(reserved.lending.shown)
    return plain


def as_text(snapshot: Snapshot) -> str:
    """The snapshot in a few lines."""
    counters = snapshot.counters
    lines = [
        f"llmd {snapshot.version}  pid {snapshot.pid}  up {_duration(snapshot.uptime_s)}  "
        f"{snapshot.status}",
        f"{snapshot.model}  {snapshot.url}  up to {snapshot.max_len} tokens",
        f"{snapshot.running} running, {snapshot.waiting} waiting; "
        f"{counters.requests} requests taken, {counters.rejected} rejected; {counters.finished} "
        f"answers finished, {counters.aborted} aborted, {counters.failed} failed",
        *_predictor(snapshot),
        *_placement(snapshot),
        *_deadlines(snapshot),
        *_memory(snapshot),
        *_losses(snapshot),
        "",
        _row("INSTANCE", "DEVICE", "ROLE", "STATE", "RUN", "WAIT", "KV USED", "STEP", "P99"),
    ]
    for instance in snapshot.instances:
        ranks = range(len(instance.ranks))
        lines += [_instance_row(instance), *(_rank_row(instance, number) for number in ranks)]
        lines += [f"  node {instance.node}"] if instance.node else []
    if snapshot.roles.mode in WATCHED:
        lines += ["", *roles_lines(snapshot.roles)[:2]]
    if words := snapshot.plan.words:
        lines += ["", f"plan {words}"]
    lines += _below("TRANSFERS", [_transfer(transfer) for transfer in snapshot.transfers])
    lines += _below("FLIPS", [_flip(flip) for flip in reversed(snapshot.flips)])
    return "\n".join(lines)


def _rank_row(instance: InstanceStatus, number: int) -> str:
    """A line on a rank, below its instance."""
    rank, bubble = instance.ranks[number], instance.bubble_of(number)
    parts = [
        f"  rank {number}",
        rank.device,
        f"pid {rank.pid}",
        rank.state,
        f"{rank.memory_bytes / 2**20:,.0f} MiB",
        "" if bubble is None else f"{100 * bubble:.0f} % bubble",
    ]
    return "  ".join(filter(None, parts))


def _predictor(snapshot: Snapshot) -> list[str]:
    """A line on the predictor of answer lengths, if there is one."""
    predictor, counters = snapshot.predictor, snapshot.counters
    if predictor.kind == "none":
        return []
    line = f"predictor {predictor.kind}{'' if predictor.up else ' (its process is not up)'}: "
    line += (
        f"{predictor.answers} of {predictor.asks} answers predicted, {predictor.dropped} dropped"
    )
    if predictor.answers:
        line += f", {predictor.took_sum_s / predictor.answers * 1e3:.2f} ms each"
    if counters.prediction_count:
        near = counters.predictions_near / counters.prediction_count
        line += f"; of {counters.prediction_count} finished the median is off by "
        line += f"{counters.median_error:.0%}, {near:.0%} are within a factor of two"
    return [line]


def _placement(snapshot: Snapshot) -> list[str]:
    """A line on the placement, if there are several instances."""
    several = len(snapshot.instances) > 1 and snapshot.placement
    return [f"placement {snapshot.placement}"] if several else []


def _deadlines(snapshot: Snapshot) -> list[str]:
    """A line for each SLO class: the deadlines that its answers met."""
    lines = []
    for due in snapshot.counters.due:
        words = f"{due.scale:g} times an answer's time alone" if due.scale else "requests' own"
        total = due.kept + due.missed
        lines.append(f"deadlines, {words}: {due.kept} of {total} kept ({due.kept / total:.1%})")
    return lines


def _memory(snapshot: Snapshot) -> list[str]:
    """A line for each instance on what its memory keeps room for."""
    lines = []
    for instance in snapshot.instances:
        parts = [f"decode admission {instance.decode_admission}"] * bool(instance.decode_admission)
        parts += [f"{instance.burst_blocks} blocks kept for bursts"] * bool(instance.burst_blocks)
        if instance.host_blocks:
            packed = ", packed into 8 bits" * snapshot.compress
            parts.append(f"{instance.host_held}/{instance.host_blocks} blocks in RAM{packed}")
        if instance.kv_kinds:
            held = ", ".join(map(_kind, instance.kv_kinds))
            parts.append(f"blocks held: {held}")
        if instance.states is not msgspec.UNSET:
            parts.append(snapshot_words(instance.states))
        if instance.experts is not msgspec.UNSET:
            parts.append(expert_words(instance.experts))
        if parts:
            lines.append(f"{instance.name}: {'; '.join(parts)}")
    return lines


def expert_words(experts: ExpertStatus) -> str:
    """The places of a mixture's experts, and the share of tokens' experts that the CPU computed."""
    held = f"experts: {experts.on_device} on the device, {experts.in_ram} in RAM"
    share = f"{experts.ram_share:.1%} of the tokens' computed in RAM"
    return f"{held}, {share}, {experts.exchanged} exchanged"


def snapshot_words(states: StateStatus) -> str:
    """Snapshots of states, and the prompts that went on from one."""
    began = f"{states.hits} prompts went on from one, which spared {states.hit_tokens} tokens"
    return f"snapshots of states: {states.snapshots}, each of {states.pages} blocks, {began}"


def _kind(kind: KindStatus) -> str:
    window = f" ({kind.window} tokens)" if kind.window else ""
    return f"{kind.held} of {kind.kind} layers{window}"


def _losses(snapshot: Snapshot) -> list[str]:
    """A line for each thing that went wrong since the start."""
    lines = []
    if snapshot.api.deaths:
        lines.append(f"the API process was started again {snapshot.api.deaths} times")
    if snapshot.journal_dropped:
        lines.append(f"the journal misses {snapshot.journal_dropped} events")
    for status in snapshot.instances:
        if status.fallbacks:
            families = ", ".join(family for family, _why in status.fallbacks)
            lines.append(f"{status.name}: torch computes {families}: slower than its own kernels")
    return lines


def _instance_row(instance: InstanceStatus) -> str:
    state = instance.state
    if state == "loading" and instance.load_stage:
        state = f"{instance.load_stage} {instance.load_fraction:.0%}"
    if instance.drained:
        state = f"{state}, drained"
    return _row(
        instance.name,
        instance.device,
        f"{instance.role}, {instance.pool}" if instance.pool else instance.role,
        state,
        str(instance.running),
        str(instance.waiting),
        f"{instance.kv_used}/{instance.kv_blocks}",
        _milliseconds(instance.step_s),
        _milliseconds(instance.step_p99_s) if instance.step_p99_s else "-",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _below(title: str, rows: Sequence[str]) -> list[str]:
    """A title, its first rows, and how many more there are; nothing without rows."""
    if not rows:
        return []
    more = len(rows) - MAX_ROWS
    return ["", title, *rows[:MAX_ROWS], *([f"and {more} more"] if more > 0 else [])]


def _transfer(status: TransferStatus) -> str:
    sort = ("ahead" if status.ahead else "tail") + (", from host memory" * status.from_host)
    age, expected = _milliseconds(status.age_s), _milliseconds(status.expected_s)
    how_far = f"{age} of about {expected}" if status.expected_s else age
    return (
        f"{status.source} -> {status.target}  sequence {status.sequence}  "
        f"{status.num_blocks} blocks, {status.num_bytes / 2**20:.1f} MiB  {sort}  {how_far}"
    )


def _flip(status: FlipStatus) -> str:
    """A line on one flip."""
    return (
        f"{status.number}  {status.instance}: {status.was} -> {status.role} ({status.why}), "
        f"{_duration(status.age_s)} ago: "
        f"{how_far(status.flip_s, status.clear_s, idle=status.idle)}"
    )


def how_far(flip_s: float, clear_s: float, *, idle: bool) -> str:
    """How far a flip is: the first work of the new role, and the last of the old one."""
    first = f"first work after {_milliseconds(flip_s)}"
    if flip_s < 0:
        first = "no work waited for it" if idle else "its first work was not sent yet"
    clear = f"clear after {_milliseconds(clear_s)}" if clear_s >= 0 else "not clear yet"
    return f"{first}, {clear}"


def _row(*cells: str) -> str:
    widths = (12, 8, 8, 16, 5, 5, 15, 10, 10)
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return " ".join(padded).rstrip()


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _column_as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")
