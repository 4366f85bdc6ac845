"""`llmd ctl`: one snapshot of a running daemon, for people or for scripts, and its orders."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon.cli.faults import UsageError
from daemon.control.client import (
    ControlError,
    attach_path,
    choose_policy,
    drain,
    fetch_snapshot,
    reload,
    resume,
)
from daemon.protocol.control import InstanceStatus, Reloaded, Snapshot
from daemon.scheduler.policies import POLICIES, meanings

TIMEOUT_S = 5.0
RELOAD_TIMEOUT_S = 30.0
"""The answer comes when all is done, and a file may lie on a slow disk."""


def ctl(arguments: argparse.Namespace) -> int:
    """Print what was asked for. 0: the daemon answered; 1: none did, or it refused.

    Raises UsageError.
    """
    try:
        print(_answer(arguments, arguments.socket or attach_path()))
    except ControlError as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 1
    return 0


def _answer(arguments: argparse.Namespace, path: Path) -> str:
    """What the daemon says to the verb. Raises ControlError and UsageError."""
    match arguments.verb:
        case "policy":
            return _policy(path, arguments.name, arguments.instance)
        case "reload":
            return reloaded(reload(path, RELOAD_TIMEOUT_S))
        case "drain":
            return drained(drain(path, TIMEOUT_S))
        case "resume":
            return f"requests are taken again; {resume(path, TIMEOUT_S).status}"
    snapshot = fetch_snapshot(path, TIMEOUT_S)
    return as_json(snapshot) if arguments.json else as_text(snapshot)


def _policy(path: Path, name: str | None, instance: str | None) -> str:
    """All policies, once the one of this name is chosen if there is one."""
    if instance is not None and not (name and instance):
        raise UsageError("--instance takes a name, and goes with a policy's")
    if name is None:
        return policies(fetch_snapshot(path, TIMEOUT_S))
    return policies(choose_policy(path, name, TIMEOUT_S, instance or ""))


def reloaded(answer: Reloaded) -> str:
    """A line for what changed, and one for what did not and would."""
    lines = [f"read {answer.file} again; changed: {', '.join(answer.changed) or 'nothing'}"]
    if answer.needs_restart:
        lines.append(f"needs a restart: {', '.join(answer.needs_restart)}")
    return "\n".join(lines)


def drained(snapshot: Snapshot) -> str:
    """What is left to do."""
    left = snapshot.running + snapshot.waiting
    return f"no new requests are taken; {left} answers are under way"


def policies(snapshot: Snapshot) -> str:
    """Every policy in a line of its own, with a star where an instance uses it; of several in use
    each names its instances.
    """
    used: dict[str, list[str]] = {}
    for one in snapshot.instances:
        used.setdefault(one.policy, []).append(one.name)
    names = [*POLICIES, *sorted(used.keys() - POLICIES.keys())]
    lines = dict(zip(POLICIES, meanings(), strict=True))
    where = {name: f" ({', '.join(of)})" for name, of in used.items() if len(used) > 1}
    return "\n".join(
        f"{'*' if name in used else ' '} {lines.get(name, name)}{where.get(name, '')}"
        for name in names
    )


def as_json(snapshot: Snapshot) -> str:
    """The whole snapshot as one JSON object; columns become lists, sequences become objects."""
    plain = msgspec.to_builtins(snapshot, enc_hook=_column_as_list)
    plain["sequences"] = [msgspec.structs.asdict(sequence) for sequence in snapshot.sequences]
    return msgspec.json.format(msgspec.json.encode(plain).decode(), indent=2)


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
        *_losses(snapshot),
        "",
        _row("INSTANCE", "DEVICE", "ROLE", "STATE", "RUN", "WAIT", "KV FREE", "STEP"),
    ]
    lines += [_instance_row(instance) for instance in snapshot.instances]
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
        error = counters.prediction_error_sum / counters.prediction_count
        line += f"; mean error {error:.0%} of {counters.prediction_count} finished"
    return [line]


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
    return _row(
        instance.name,
        instance.device,
        instance.role,
        state,
        str(instance.running),
        str(instance.waiting),
        f"{instance.kv_free}/{instance.kv_blocks}",
        f"{instance.step_s * 1e3:.1f} ms",
    )


def _row(*cells: str) -> str:
    widths = (12, 8, 8, 16, 5, 5, 15, 10)
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return " ".join(padded).rstrip()


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _column_as_list(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")
