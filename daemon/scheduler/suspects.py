"""Suspects: sequences of a step that killed a worker, each computed alone until it has a token.

The sequence that killed the worker cannot be told from the others of its step. So all of them are
suspects, and one after the other runs in steps of its own, while all others wait. A token acquits a
suspect. If the worker dies again, the suspect that was alone is guilty.
"""

from daemon.scheduler.in_flight import InFlight
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence

DEADLY_STRIKES = 2
DEADLY = "the engine failed twice while it computed this request, the second time it alone"


class Suspects:
    """The suspects of one instance, in the order in which they run alone."""

    def __init__(self) -> None:
        self.members: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.members)

    def accuse(self, table: SlotTable, in_flight: InFlight) -> list[Sequence]:
        """Make suspects of the sequences in flight, as the worker died of a step in flight.

        Returns the guilty: those that were suspects before, and so were alone.
        """
        if not in_flight:
            return []
        oldest = in_flight.steps[0].step
        named = [table.member(s) for s in table.order().tolist() if table.last_step[s] >= oldest]
        for sequence in named:
            sequence.strikes += 1
            if sequence.strikes == 1:
                self.members.append(sequence)
        return [sequence for sequence in named if sequence.strikes >= DEADLY_STRIKES]

    def add(self, sequence: Sequence) -> None:
        """Add a sequence from another instance if it is a suspect."""
        if sequence.strikes:
            self.members.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ended or went to another instance."""
        if sequence.strikes:
            self.members.remove(sequence)

    def acquit(self, ids: list[int]) -> None:
        """Clear the sequences that got a token: they have not killed their worker this time."""
        for sequence in [member for member in self.members if member.id in ids]:
            sequence.strikes = 0
            self.members.remove(sequence)

    @property
    def first(self) -> Sequence | None:
        """The suspect to be computed alone: one that runs goes on; None without suspects."""
        if not self.members:
            return None
        return next((member for member in self.members if member.slot >= 0), self.members[0])
