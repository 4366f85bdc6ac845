"""`llmd ctl status`: a snapshot as one JSON object, or as a few lines."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from daemon.cli.roles_text import roles_lines
from daemon.protocol.control import (
    FlipStatus,
    InstanceStatus,
    ReservedStatus,
    Snapshot,
    TransferStatus,
)
from daemon.state.role import AUTO

MAX_ROWS = 8
"""Transfers, and flips, that are listed."""


def as_json(snapshot: Snapshot) -> str:
    """The whole snapshot as one JSON object; columns become lists, what is array-like becomes
    objects. An instance has the transfers that it is an end of.
    """
    plain = msgspec.to_builtins(snapshot, enc_hook=_column_as_list)
    plain["counters"]["due"] = [msgspec.structs.asdict(one) for one in snapshot.counters.due]
    plain["roles"]["expected"] = [msgspec.structs.asdict(one) for one in snapshot.roles.expected]
    for name in ("sequences", "transfers", "flips"):
        plain[name] = [msgspec.structs.asdict(one) for one in getattr(snapshot, name)]
    for one, status in zip(plain["instances"], snapshot.instances, strict=True):
        if status.reserved is not None:
            one["reserved"] = _reserved(status.reserved)
        one["transfers"] = [
            transfer
            for transfer in plain["transfers"]
            if one["name"] in (transfer["source"], transfer["target"])
        ]
    return msgspec.json.format(msgspec.json.encode(plain).decode(), indent=2)


def _reserved(reserved: ReservedStatus) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(reserved)
    plain["groups"] = [msgspec.structs.asdict(one) for one in reserved.groups]
    if reserved.lending is not None:
        plain["lending"]["shown"] = [msgspec.structs.asdict(one) for one in reserved.lending.shown]
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
        *_losses(snapshot),
        "",
        _row("INSTANCE", "DEVICE", "ROLE", "STATE", "RUN", "WAIT", "KV USED", "STEP", "P99"),
    ]
    lines += [_instance_row(instance) for instance in snapshot.instances]
    if snapshot.roles.mode == AUTO:
        lines += ["", *roles_lines(snapshot.roles)[:2]]
    lines += _below("TRANSFERS", [_transfer(one) for one in snapshot.transfers])
    lines += _below("FLIPS", [_flip(one) for one in reversed(snapshot.flips)])
    return "\n".join(lines)


def _predictor(snapshot: Snapshot) -> list[str]:
    """A line on how answer lengths are predicted; none where they are not."""
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
    """A line on how instances are chosen; none where there is no choice."""
    several = len(snapshot.instances) > 1 and snapshot.placement
    return [f"placement {snapshot.placement}"] if several else []


def _losses(snapshot: Snapshot) -> list[str]:
    """What went wrong since the start, a line each."""
    lines = []
    if snapshot.api.deaths:
        lines.append(f"the API process was started again {snapshot.api.deaths} times")
    if snapshot.journal_dropped:
        lines.append(f"the journal misses {snapshot.journal_dropped} events")
    for one in snapshot.instances:
        if one.fallbacks:
            families = ", ".join(family for family, _why in one.fallbacks)
            lines.append(f"{one.name}: torch computes {families}: slower than its own kernels")
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
        instance.role,
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
    """A title and its first rows, and how many more there are; nothing where there is none."""
    if not rows:
        return []
    more = len(rows) - MAX_ROWS
    return ["", title, *rows[:MAX_ROWS], *([f"and {more} more"] if more > 0 else [])]


def _transfer(one: TransferStatus) -> str:
    sort = ("ahead" if one.ahead else "tail") + (", from host memory" if one.from_host else "")
    age, expected = _milliseconds(one.age_s), _milliseconds(one.expected_s)
    how_far = f"{age} of about {expected}" if one.expected_s else age
    return (
        f"{one.source} -> {one.target}  sequence {one.sequence}  {one.num_blocks} blocks, "
        f"{one.num_bytes / 2**20:.1f} MiB  {sort}  {how_far}"
    )


def _flip(one: FlipStatus) -> str:
    """One line; the newest comes first."""
    return (
        f"{one.number}  {one.instance}: {one.was} -> {one.role} ({one.why}), "
        f"{_duration(one.age_s)} ago: {how_far(one.flip_s, one.clear_s, idle=one.idle)}"
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
