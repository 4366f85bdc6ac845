"""Where the dashboard's news come from: a living daemon, or a recording."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from daemon.control.client import Message
from daemon.protocol.control import Closer, Snapshot


@dataclass(frozen=True)
class Disconnected:
    """No daemon answers since `since_s` (time.monotonic()), for this reason; it is tried again."""

    since_s: float
    reason: str


@dataclass(frozen=True)
class Rewound:
    """Time has jumped: what was there shortly before the news that follow, oldest first."""

    before: tuple[Snapshot, ...]


News = Message | Disconnected | Rewound


class Source(Protocol):
    """What the dashboard follows."""

    def news(self) -> AsyncIterator[News]:
        """All that is heard, as it comes, without an end."""

    def ask(self, question: Closer) -> None:
        """Ask beyond the snapshots; the answer comes among the news, or never."""
