"""What a person may change in the daemon from here: what `llmd ctl` can, and no more."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from daemon.control.client import choose_policy, drain, reload, resume

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
