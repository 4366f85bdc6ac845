"""The source of the dashboard's news: a live daemon, or a recording."""

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
    """Time has jumped: the snapshots shortly before the following news, oldest first."""

    before: tuple[Snapshot, ...]


News = Message | Disconnected | Rewound


class Source(Protocol):
    """The source of news that the dashboard follows."""

    def news(self) -> AsyncIterator[News]:
        """All news as they come, without an end."""

    def ask(self, question: Closer) -> None:
        """Ask beyond the snapshots; the answer comes among the news, or never."""
