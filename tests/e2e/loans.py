"""Reserved and lent memory of a daemon, by its journal."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from daemon.core.core import Core
from daemon.journal.reader import read_records
from daemon.lab.simulator.journal import replay
from daemon.state.sequence import Sequence
from daemon.state.story import What


@dataclass(slots=True)
class Loans:
    """Counts of what happened at one instance."""

    made: int = 0
    left_kept: int = 0  # borrowers that left, with some KV kept in host memory
    left_again: int = 0  # likewise, and what they had was computed again
    late_kept: int = 0  # those that left for a block, and for no lender
    late_again: int = 0
    grown: int = 0  # reservations that became larger
    shrunk: int = 0
    _lenders: set[tuple[int, int]] = field(default_factory=set)  # (borrower, lender), ever
    _reserved: dict[int, int] = field(default_factory=dict)  # by sequence, as of the event before
    _sequences: dict[int, Sequence] = field(default_factory=dict)

    def look(self, core: Core) -> None:
        """After an event."""
        scheduler = core.instances[0].scheduler
        table, kv = scheduler.slots, scheduler.kv
        self._sequences |= core.sequences
        self._lenders |= {
            (table.member(loan.borrower).id, table.member(loan.lender).id) for loan in kv.lending
        }
        before, self._reserved = self._reserved, {}
        for slot in table.order().tolist():
            if kv.reservations.has(slot):
                self._reserved[table.member(slot).id] = kv.lending.num_reserved(slot)
        for sequence in before.keys() & self._reserved.keys():
            self.grown += self._reserved[sequence] > before[sequence]
            self.shrunk += self._reserved[sequence] < before[sequence]

    def settle(self) -> None:
        """After the last one: the stories tell who left, and why."""
        self.made = len(self._lenders)
        left: Counter[tuple[bool, bool]] = Counter()
        for sequence in self._sequences.values():
            for _, what, num_kept, other in sequence.story.marks:
                if what == What.OUT_OF_BLOCKS:
                    left[(sequence.id, other) in self._lenders, num_kept > 0] += 1
        self.left_kept, self.left_again = left[True, True], left[True, False]
        self.late_kept, self.late_again = left[False, True], left[False, False]


def loans_of(journal: Path) -> Loans:
    """The loans of a whole journal, from its daemon's start on."""
    cores: list[Core] = []
    loans = Loans()
    for _ in replay(read_records(journal), cores.append):
        loans.look(cores[-1])
    loans.settle()
    return loans
