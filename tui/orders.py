"""An operator's orders from the dashboard: a part of `llmd ctl`'s."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from daemon.control.client import (
    choose_policy,
    drain,
    drain_instance,
    flip,
    migrate,
    reload,
    resume,
    resume_instance,
)
from daemon.protocol.control import InstanceStatus
from tui.format import printable

TIMEOUT_S = 5.0


class OperatorOrder(NamedTuple):
    """One order to the daemon; `carry_out` waits for it and returns its result in words."""

    title: str
    help: str
    carry_out: Callable[[Path], str]


def policy_order(name: str) -> OperatorOrder:
    """Change the policy. Its `carry_out` raises ControlError, as every order's."""

    def carry_out(path: Path) -> str:
        choose_policy(path, name, TIMEOUT_S)
        return f"the policy is {name} now"

    return OperatorOrder(f"Policy: {name}", "rank sequences by it from now on", carry_out)


def flip_order(name: str, role: str) -> OperatorOrder:
    """Give an instance another role; its card shows the progress."""

    def carry_out(path: Path) -> str:
        done = flip(path, name, role, TIMEOUT_S, wait_s=0.0)
        return f"{name} is {done.role}{' now' if done.number else ' already'}"

    text = "It prefers other work from now on; nothing is drained and nothing computed again."
    return OperatorOrder(f"Flip {printable(name)} to {role}", text, carry_out)


def drain_order(instance: InstanceStatus) -> OperatorOrder:
    """Migrate everything away from an instance; or use it again, where that was done."""
    name = instance.name

    def empty(path: Path) -> str:
        drain_instance(path, name, TIMEOUT_S)
        return f"{name} takes nothing new, and its sequences move away"

    def use(path: Path) -> str:
        resume_instance(path, name, TIMEOUT_S)
        return f"{name} is used again"

    if instance.drained:
        return OperatorOrder(f"Resume {printable(name)}", "It takes work again.", use)
    count = instance.running + instance.waiting
    text = f"{count} sequences move to others, and it idles until it is resumed."
    return OperatorOrder(f"Drain {printable(name)}", text, empty)


def migration_order(sequence: int, name: str) -> OperatorOrder:
    """Migrate a sequence to another instance."""

    def carry_out(path: Path) -> str:
        migrating = migrate(path, sequence, name, TIMEOUT_S)
        return f"sequence {sequence} moves from {migrating.source} to {migrating.target}"

    text = "Its keys and values go along; it pauses until they have landed."
    return OperatorOrder(f"Migrate sequence {sequence} to {printable(name)}", text, carry_out)


def _drain(path: Path) -> str:
    drain(path, TIMEOUT_S)
    return "the daemon takes no new requests now"


def _resume(path: Path) -> str:
    resume(path, TIMEOUT_S)
    return "the daemon takes requests again"


def _reload(path: Path) -> str:
    came = reload(path, TIMEOUT_S)
    changed = ", ".join(came.changed) or "nothing"
    later = f"; after a restart also {', '.join(came.needs_restart)}" if came.needs_restart else ""
    return f"changed: {changed}{later}"


ORDERS = (
    OperatorOrder("Drain", "take no new requests, finish those that are here", _drain),
    OperatorOrder("Resume", "take requests again", _resume),
    OperatorOrder("Reload", "read the configuration file again", _reload),
)
