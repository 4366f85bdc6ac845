"""What an event between instances calls: moves, transfers, links, roles."""

from collections.abc import Callable
from typing import Any

from daemon.core.events import (
    InstanceDrained,
    InstanceResumed,
    LinkChanged,
    MoveOrdered,
    RoleChosen,
    RolesChosen,
    TransferEnded,
)
from daemon.core.migration import Migration
from daemon.core.watcher import Watcher


def handlers(migration: Migration, watcher: Watcher) -> dict[type, Callable[[Any], None]]:
    """By the event's type."""
    return {
        LinkChanged: migration.on_link,
        TransferEnded: migration.on_transfer,
        MoveOrdered: migration.on_move,
        InstanceDrained: migration.on_drain_one,
        InstanceResumed: migration.on_resume_one,
        RoleChosen: watcher.on_role,
        RolesChosen: watcher.on_chosen,
    }
