"""What a person may change in the daemon from here: what `llmd ctl` can, and no more."""

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
    """One thing that can be asked of the daemon; `carry_out` waits for it and tells what came."""

    title: str
    help: str
    carry_out: Callable[[Path], str]


def policy_order(name: str) -> OperatorOrder:
    """Rank by another policy. Its `carry_out` raises ControlError, as every order's."""

    def carry_out(path: Path) -> str:
        choose_policy(path, name, TIMEOUT_S)
        return f"the policy is {name} now"

    return OperatorOrder(f"Policy: {name}", "rank sequences by it from now on", carry_out)


def flip_order(name: str, role: str) -> OperatorOrder:
    """Give an instance another role; what comes of it is seen on its card."""

    def carry_out(path: Path) -> str:
        done = flip(path, name, role, TIMEOUT_S, wait_s=0.0)
        return f"{name} is {done.role}{' now' if done.number else ' already'}"

    text = "It prefers other work from now on; nothing is drained and nothing computed again."
    return OperatorOrder(f"Flip {printable(name)} to {role}", text, carry_out)


def drain_order(one: InstanceStatus) -> OperatorOrder:
    """Move everything away from an instance; or use it again, where that was done."""
    name = one.name

    def empty(path: Path) -> str:
        drain_instance(path, name, TIMEOUT_S)
        return f"{name} takes nothing new, and what is there moves away"

    def use(path: Path) -> str:
        resume_instance(path, name, TIMEOUT_S)
        return f"{name} is used again"

    if one.drained:
        return OperatorOrder(f"Resume {printable(name)}", "It takes work again.", use)
    text = (
        f"{one.running + one.waiting} sequences move to others, and it idles until it is resumed."
    )
    return OperatorOrder(f"Drain {printable(name)}", text, empty)


def move_order(sequence: int, name: str) -> OperatorOrder:
    """Go on with a sequence on another instance."""

    def carry_out(path: Path) -> str:
        told = migrate(path, sequence, name, TIMEOUT_S)
        return f"sequence {sequence} moves from {told.source} to {told.target}"

    text = "Its keys and values go along; it pauses until they have landed."
    return OperatorOrder(f"Move sequence {sequence} to {printable(name)}", text, carry_out)


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
