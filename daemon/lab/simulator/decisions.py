"""The time that placement takes to decide, by this machine's clock: the Core itself has none."""

import time
from array import array
from collections.abc import Sequence as Listing

from daemon.core.dispatch import Decide
from daemon.core.instance import Instance
from daemon.state.role import Role
from daemon.state.sequence import Sequence


class TimedDecisions:
    """Decides as `decide` does, and keeps how long each decision took."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self.taken_s = array("d")

    def __call__(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        """The instance that is decided on."""
        began_s = time.perf_counter()
        chosen = self._decide(sequence, among, wanted, now)
        self.taken_s.append(time.perf_counter() - began_s)
        return chosen
