"""What moving asks of the Core, and of who places sequences in it."""

from collections.abc import Sequence as Listing
from typing import Protocol

from daemon.core.actions import Action
from daemon.core.chores import Chores
from daemon.core.events import Configured
from daemon.core.instance import Instance
from daemon.core.snapshot import Counters
from daemon.state.role import Role
from daemon.state.sequence import Sequence


class Chooser(Protocol):
    """Says where sequences go."""

    def choose(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        """The instance that placement chooses."""

    def place(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence where placement chooses."""


class Host(Protocol):
    """What migration asks of the Core."""

    config: Configured
    instances: list[Instance]
    sequences: dict[int, Sequence]
    counters: Counters
    chores: Chores

    @property
    def dispatch(self) -> Chooser:
        """Who says where sequences go."""

    def touch(self, index: int) -> Instance:
        """An instance that this event changes."""

    def act(self, action: Action) -> None:
        """Have the driver do something."""
