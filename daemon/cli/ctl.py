"""`llmd ctl`: one snapshot of a running daemon, for people or for scripts, and its orders."""

import argparse
import sys
from pathlib import Path

from daemon import placement
from daemon.cli.faults import UsageError
from daemon.cli.instance_orders import cap_text, flip_text, migrate_text
from daemon.cli.roles_text import roles_lines
from daemon.cli.status import as_json, as_text
from daemon.control.client import (
    ControlError,
    attach_path,
    choose_budget,
    choose_placement,
    choose_policy,
    choose_roles,
    drain,
    drain_instance,
    fetch_snapshot,
    reload,
    resume,
    resume_instance,
)
from daemon.protocol.control import Reloaded, Snapshot
from daemon.scheduler.policies import POLICIES, meanings

TIMEOUT_S = 5.0
RELOAD_TIMEOUT_S = 30.0
"""The daemon answers only after it has read the file, perhaps from a slow disk."""


def ctl(arguments: argparse.Namespace) -> int:
    """Carry out the verb and print its answer. 0: the daemon answered; 1: none did, or it refused.

    Raises UsageError.
    """
    try:
        print(_answer(arguments, arguments.socket or attach_path()))
    except ControlError as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 1
    return 0


def _answer(arguments: argparse.Namespace, path: Path) -> str:
    """Send the verb to the daemon and format its answer. Raises ControlError and UsageError."""
    match arguments.verb:
        case "policy":
            return _policy(path, arguments.name, arguments.instance)
        case "budget":
            return _budget(path, arguments.tokens, arguments.instance)
        case "placement" if arguments.name is None:
            return placements(fetch_snapshot(path, TIMEOUT_S))
        case "placement":
            return placements(choose_placement(path, arguments.name, TIMEOUT_S))
        case "reload":
            return reloaded(reload(path, RELOAD_TIMEOUT_S))
        case "drain" if arguments.instance is not None:
            snapshot = drain_instance(path, arguments.instance, TIMEOUT_S)
            return instance_drained(snapshot, arguments.instance)
        case "drain":
            return drained(drain(path, TIMEOUT_S))
        case "resume" if arguments.instance is not None:
            return _resumed(path, arguments.instance)
        case "resume":
            return f"requests are taken again; {resume(path, TIMEOUT_S).status}"
        case "roles":
            return _roles(path, arguments.mode)
        case "flip":
            return flip_text(path, arguments)
        case "cap":
            return cap_text(path, arguments)
        case "migrate":
            return migrate_text(path, arguments)
    snapshot = fetch_snapshot(path, TIMEOUT_S)
    return as_json(snapshot) if arguments.json else as_text(snapshot)


def _policy(path: Path, name: str | None, instance: str | None) -> str:
    """Choose the policy of this name, if one is given, and list all of them."""
    if instance is not None and not (name and instance):
        raise UsageError("--instance takes a name, and goes with a policy's")
    if name is None:
        return policies(fetch_snapshot(path, TIMEOUT_S))
    return policies(choose_policy(path, name, TIMEOUT_S, instance or ""))


def _budget(path: Path, tokens: str | None, instance: str | None) -> str:
    """Choose the token budget of steps, if one is given, and list those of all instances."""
    if instance is not None and not (tokens and instance):
        raise UsageError("--instance takes a name, and goes with a budget")
    if tokens is None:
        return budgets(fetch_snapshot(path, TIMEOUT_S))
    chosen = 0 if tokens == "auto" else _count(tokens)
    return budgets(choose_budget(path, chosen, TIMEOUT_S, instance or ""))


def _count(text: str) -> int:
    """A number of tokens above 0. Raises UsageError."""
    if text.isascii() and text.isdecimal() and 0 < int(text) < 2**31:
        return int(text)
    raise UsageError(f"expected a number of tokens above 0, or auto, got {text!r}")


def _resumed(path: Path, instance: str) -> str:
    """Use an instance again, and say whether it was not."""
    before = fetch_snapshot(path, TIMEOUT_S)
    resume_instance(path, instance, TIMEOUT_S)
    drained = any(status.drained for status in before.instances if status.name == instance)
    return f"{instance} is used again" if drained else f"{instance} was not drained: it is used"


def _roles(path: Path, mode: str | None) -> str:
    """Choose how roles are given, if a mode is named, and describe the roles."""
    snapshot = choose_roles(path, mode, TIMEOUT_S) if mode else fetch_snapshot(path, TIMEOUT_S)
    return "\n".join(roles_lines(snapshot.roles))


def reloaded(answer: Reloaded) -> str:
    """A line for the values that changed, and one for those that need a restart."""
    lines = [f"read {answer.file} again; changed: {', '.join(answer.changed) or 'nothing'}"]
    if answer.needs_restart:
        lines.append(f"needs a restart: {', '.join(answer.needs_restart)}")
    return "\n".join(lines)


def drained(snapshot: Snapshot) -> str:
    """A line on a draining daemon: its remaining answers."""
    left = snapshot.running + snapshot.waiting
    return f"no new requests are taken; answers under way: {left}"


def instance_drained(snapshot: Snapshot, name: str) -> str:
    """A line on a draining instance: its remaining sequences."""
    status = next(status for status in snapshot.instances if status.name == name)
    left = status.running + status.waiting + status.remote_kvs
    return f"{name} takes nothing new; {left} sequences are to move away"


def policies(snapshot: Snapshot) -> str:
    """A line for each policy, with a star where an instance uses it; where several are in use,
    each names its instances.
    """
    used: dict[str, list[str]] = {}
    for status in snapshot.instances:
        used.setdefault(status.policy, []).append(status.name)
    names = [*POLICIES, *sorted(used.keys() - POLICIES.keys())]
    lines = dict(zip(POLICIES, meanings(), strict=True))
    where = {name: f" ({', '.join(of)})" for name, of in used.items() if len(used) > 1}
    return "\n".join(
        f"{'*' if name in used else ' '} {lines.get(name, name)}{where.get(name, '')}"
        for name in names
    )


def budgets(snapshot: Snapshot) -> str:
    """A line for each instance: what its steps are filled up to, and who chose that."""
    return "\n".join(
        f"{each.name}: {each.batch_budget} tokens a step, "
        + ("as chosen" if each.chosen_budget else "as configured")
        for each in snapshot.instances
    )


def placements(snapshot: Snapshot) -> str:
    """A line for each placement, with a star at the one in use."""
    used = snapshot.placement
    lines = placement.meanings()
    names = [*lines, *({used} - lines.keys() - {""})]
    return "\n".join(f"{'*' if name == used else ' '} {lines.get(name, name)}" for name in names)
