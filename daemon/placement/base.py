"""The base of placements: which of several instances a sequence is queued at."""

from abc import ABC, abstractmethod
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import ClassVar

from daemon.role import Role
from daemon.sequence import Sequence


@dataclass(slots=True, frozen=True)
class Candidate:
    """An instance that could take the sequence, and its load."""

    instance: int
    role: Role
    num_pending_tokens: int  # known tokens of sequences that wait for it
    num_running: int
    kv_share: float  # of its blocks held, 0..1
    wait_s: float = 0.0  # predicted time to compute the pending tokens


class Placement(ABC):
    """Chooses among instances. It holds no state: equal arguments give equal choices."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    """One line for help texts."""

    @abstractmethod
    def choose(self, sequence: Sequence, candidates: Listing[Candidate], seed: int) -> int:
        """The `instance` of one of the candidates, which are two or more.

        `seed` is all the chance there is: the Core gives each sequence another one.
        """
