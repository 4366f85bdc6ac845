"""The time that placement takes to decide, by this machine's clock: the Core itself has none."""

import time
from array import array
from collections.abc import Sequence as Listing

from daemon.core.dispatch import Decide
from daemon.core.instance import Instance
from daemon.state.role import Role
from daemon.state.sequence import Sequence


class TimedDecisions:
    """How long each decision of placement took."""

    def __init__(self) -> None:
        self.taken_s = array("d")

    def around(self, decide: Decide) -> Decide:
        """`decide`, timed."""

        def timed(
            sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
        ) -> Instance:
            began_s = time.perf_counter()
            chosen = decide(sequence, among, wanted, now)
            self.taken_s.append(time.perf_counter() - began_s)
            return chosen

        return timed
