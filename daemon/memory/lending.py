"""The ledger of loans: reserved blocks that their sequence does not need yet, used by another.

EcoServe, section 3.4 (KVC pipelining). A *lender* lends a *borrower* a count of the blocks that it
has reserved and does not hold. Counts alone are lent: every block comes from the pool when a token
needs it, and has one owner. A loan is due at a token of its lender, never at a time: the borrower
has to have left before the lender computes the token that needs the first lent block.
"""

from collections.abc import Iterator
from typing import NamedTuple

from daemon.memory.block_pool import LedgerError
from daemon.memory.reservations import Reservations
from daemon.wire.columns import Int32


class Loan(NamedTuple):
    """Blocks that the sequence in one slot lends to the one in another."""

    lender: int
    borrower: int
    num_blocks: int


class Lending:
    """The loans between the slots of one pool.

    What a lender may hold is its reservation without what it lends; so all that may be held
    together stays what was promised: the sum of the reservations, less the loans. A borrower has
    one lender, and may be a lender itself, of what it does not hold yet; then its borrowers leave
    before it does, and where it leaves first, its lender takes them over. Blocks of a borrower that
    left are *owed* to its lender until the steps in flight have answered that name them, and no
    other sequence gets them.
    """

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._loans: dict[int, list[Loan]] = {}  # of each lender; first due first
        self._lender: dict[int, int] = {}  # of each borrower
        self.owed: dict[int, int] = {}  # blocks, to each lender

    @property
    def num_owed(self) -> int:
        """Blocks that are on their way back to lenders."""
        return sum(self.owed.values()) if self.owed else 0

    def __iter__(self) -> Iterator[Loan]:
        return (loan for loans in self._loans.values() for loan in loans)

    def __len__(self) -> int:
        return len(self._lender)

    def lender_of(self, slot: int) -> int:
        """The lender of the sequence in a slot; -1: none."""
        return self._lender.get(slot, -1)

    def num_reserved(self, slot: int) -> int:
        """The blocks of a slot's reservation: what it may hold, what it lends, what it is owed."""
        lent = sum(loan.num_blocks for loan in self._loans.get(slot, ()))
        return self._reservations.most(slot) + lent + self.owed.get(slot, 0)

    def loans_of(self, lender: int) -> Iterator[tuple[Loan, int]]:
        """The loans of a lender, first due first, each with the lender's block it is due at."""
        block = self.due_block(lender)
        for loan in self._loans.get(lender, ()):
            yield loan, block
            block += loan.num_blocks

    def lend(self, lender: int, borrower: int, count: int, num_blocks: int) -> None:
        """Reserve `num_blocks` for a slot without a reservation, those that it holds among them;
        `lender` lends `count` of them, which it does not hold. Of all its loans this one is
        due first. Raises ValueError where the lender has too few, or the borrower a reservation.
        """
        if self._reservations.has(borrower) or not 0 < count <= num_blocks:
            raise ValueError(f"slot {borrower} cannot borrow {count} of {num_blocks} blocks")
        if self._reservations.unheld(lender) < count:
            raise ValueError(f"slot {lender} has no {count} blocks to lend")
        self._reservations.change(lender, -count)
        self._reservations.reserve(borrower, num_blocks)
        self._loans.setdefault(lender, []).insert(0, Loan(lender, borrower, count))
        self._lender[borrower] = lender

    def resize(self, slot: int, num_blocks: int) -> None:
        """Reserve `num_blocks` in all, as a sequence's predicted end changed; the caller has
        checked that enough more are unreserved.

        What it holds stays. A lender that needs fewer no longer needs what it lends, the last loan
        first: those blocks become the borrower's own. A borrower that needs fewer gives back to its
        lender first. A sequence that is both keeps what it has: to tell its borrowers' blocks apart
        is worth less.
        """
        by = num_blocks - self.num_reserved(slot)
        if by >= 0:
            self._reservations.change(slot, by)
        elif slot in self._loans:
            if slot not in self._lender:
                self._shrink_lender(slot, -by)
        else:
            self._shrink(slot, -by)

    def due(self, known: Int32, lead: int, block_size: int) -> list[int]:
        """The borrowers that have to leave now: the first due of each lender that computes the
        token which needs a lent block within `lead` tokens; slots have `known` tokens.
        """
        if not self._loans:
            return []
        return [
            loans[0].borrower
            for lender, loans in self._loans.items()
            if int(known[lender]) + lead > self.due_block(lender) * block_size
        ]

    def due_block(self, lender: int) -> int:
        """The first lent block of a lender: its first loan is due at that block's first token."""
        return self._reservations.most(lender) + self.owed.get(lender, 0)

    def release(self, slots: list[int]) -> None:
        """End the loans of sequences that leave with their reservations: what they borrowed is owed
        to their lenders, and what they lent belongs to its borrowers.
        """
        if not self._lender and not self.owed:
            return
        for slot in slots:
            self.owed.pop(slot, None)
            borrowers = self._loans.pop(slot, [])
            for loan in borrowers:
                del self._lender[loan.borrower]
            if slot in self._lender:
                self._leave_lender(slot, borrowers)

    def clear(self) -> None:
        """Forget all loans, as all reservations are given up."""
        self._loans.clear()
        self._lender.clear()
        self.owed.clear()

    def settle(self, num_available: int) -> None:
        """Give back to lenders what they are owed, as far as blocks are available."""
        if not self.owed:
            return
        room = num_available - self._reservations.num_unheld
        for lender, owed in list(self.owed.items()):
            given = min(owed, max(0, room))
            self._reservations.change(lender, given)
            room -= given
            if given == owed:
                del self.owed[lender]
            else:
                self.owed[lender] = owed - given

    def check(self) -> None:
        """Raises LedgerError where a loan has no owner, is circular, or exceeds the borrower's."""
        borrowers = [loan.borrower for loan in self]
        lenders = {loan.borrower: loan.lender for loan in self}
        if lenders != self._lender or len(borrowers) != len(lenders):
            raise LedgerError("a borrower has another lender, or two")
        for loan in self:
            if not (self._reservations.has(loan.lender) and self._reservations.has(loan.borrower)):
                raise LedgerError(f"{loan}: not both have a reservation")
            if not 0 < loan.num_blocks <= self.num_reserved(loan.borrower):
                raise LedgerError(f"{loan}: more than its borrower reserved, or nothing")
            above, seen = loan.lender, {loan.borrower}
            while above >= 0:
                if above in seen:
                    raise LedgerError(f"{loan}: lent in a circle")
                seen.add(above)
                above = self._lender.get(above, -1)
        if any(
            owed <= 0 or not self._reservations.has(lender) for lender, owed in self.owed.items()
        ):
            raise LedgerError("blocks are owed to a slot without a reservation")

    def _shrink_lender(self, lender: int, count: int) -> None:
        """Take `count` blocks from the reservation of a lender that borrows nothing."""
        for place in range(len(self._loans[lender]) - 1, -1, -1):
            loan = self._loans[lender][place]
            cut = min(count, loan.num_blocks)
            count -= cut
            self._put(lender, place, [loan._replace(num_blocks=loan.num_blocks - cut)])
        self._shrink(lender, count)

    def _shrink(self, slot: int, count: int) -> None:
        """Take `count` blocks from the reservation of a slot without loans, as far as possible."""
        if count and (owed := self.owed.pop(slot, 0)):
            cut = min(count, owed)
            count -= cut
            if owed > cut:
                self.owed[slot] = owed - cut
        given = min(count, self._reservations.unheld(slot))
        self._reservations.change(slot, -given)
        lender = self._lender.get(slot, -1)
        if given and lender >= 0:
            place = self._place(slot)
            loan = self._loans[lender][place]
            back = min(given, loan.num_blocks)
            self._reservations.change(lender, back)
            self._put(lender, place, [loan._replace(num_blocks=loan.num_blocks - back)])

    def _place(self, borrower: int) -> int:
        """The index of a borrower's loan among those of its lender."""
        loans = self._loans[self._lender[borrower]]
        return next(place for place, loan in enumerate(loans) if loan.borrower == borrower)

    def _put(self, lender: int, place: int, loans: list[Loan]) -> None:
        """Replace one loan of a lender by these; loans of no blocks are over."""
        kept = [loan for loan in loans if loan.num_blocks]
        old = self._loans[lender][place].borrower
        del self._lender[old]
        self._lender.update((loan.borrower, lender) for loan in kept)
        self._loans[lender][place : place + 1] = kept
        if not self._loans[lender]:
            del self._loans[lender]

    def _leave_lender(self, slot: int, borrowers: list[Loan]) -> None:
        """Have the lender of a borrower that leaves take over its borrowers, up to what it had
        lent.
        """
        lender, place = self._lender[slot], self._place(slot)
        left = self._loans[lender][place].num_blocks
        taken_over: list[Loan] = []
        for loan in borrowers:
            count = min(left, loan.num_blocks)
            left -= count
            taken_over.append(Loan(lender, loan.borrower, count))
        self._put(lender, place, taken_over)
        if left:
            self.owed[lender] = self.owed.get(lender, 0) + left
