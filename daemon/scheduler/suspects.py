"""Those who were in a step of which a worker died: each is computed alone until its next token.

Of many in one step nobody can tell which it was. So all of them are suspects, and one after the
other runs in steps of its own, while those who are under no suspicion wait for it. A token acquits
it. If a worker dies again, the one that was alone is guilty.
"""

from daemon.scheduler.in_flight import InFlight
from daemon.scheduler.slots import SlotTable
from daemon.sequence import Sequence

DEADLY_STRIKES = 2
DEADLY = "the engine failed twice while it computed this request, the second time it alone"


class Suspects:
    """The suspects of one instance, in the order of their turns; they wait and run as others do."""

    def __init__(self) -> None:
        self._members: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._members)

    def accuse(self, table: SlotTable, in_flight: InFlight) -> list[Sequence]:
        """The worker died of a step in flight: those in one are suspects. The guilty are returned:
        they were under suspicion before, and so alone.
        """
        if not in_flight:
            return []
        oldest = in_flight.steps[0].step
        named = [table.member(s) for s in table.order().tolist() if table.last_step[s] >= oldest]
        for sequence in named:
            sequence.strikes += 1
            if sequence.strikes == 1:
                self._members.append(sequence)
        return [sequence for sequence in named if sequence.strikes >= DEADLY_STRIKES]

    def add(self, sequence: Sequence) -> None:
        """One came from another instance, perhaps under suspicion."""
        if sequence.strikes:
            self._members.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """One has ended or gone to another instance."""
        if sequence.strikes:
            self._members.remove(sequence)

    def acquit(self, ids: list[int]) -> None:
        """These have got a token: the one on trial has not killed its worker this time."""
        for sequence in [one for one in self._members if one.id in ids]:
            sequence.strikes = 0
            self._members.remove(sequence)

    @property
    def first(self) -> Sequence | None:
        """Whose turn it is to be computed alone: one that runs goes on; None without suspects."""
        if not self._members:
            return None
        return next((one for one in self._members if one.slot >= 0), self._members[0])
