"""The ledger of loans: reserved blocks that their sequences do not need yet, used by others.

EcoServe, section 3.4 (KVC pipelining). A *host* lends a *lodger* a count of the blocks that it has
reserved and does not hold. Counts alone are lent: every block comes from the pool when a token
needs it, and has one owner. A loan is due at a token of its host, never at a time: the lodger has
to have left before the host computes the token that needs the first lent block.
"""

from collections.abc import Iterator
from typing import NamedTuple

from daemon.memory.block_pool import LedgerError
from daemon.memory.reservations import Reservations
from daemon.wire.columns import Int32


class Loan(NamedTuple):
    """Blocks that the sequence in one slot lends to the one in another."""

    host: int
    lodger: int
    num_blocks: int


class Lending:
    """The loans between the slots of one pool.

    What a host may hold is its reservation without what it lends; so all that may be held together
    stays what was promised: the sum of the reservations, less the loans. A lodger has one host, and
    may be a host itself, of what it does not hold yet; then its lodgers leave before it does, and
    where it leaves first, its host takes them over. Blocks of a lodger that left are *owed* to its
    host until the steps in flight have answered that name them, and nobody else gets them.
    """

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._loans: dict[int, list[Loan]] = {}  # of each host; the one that is due first first
        self._host: dict[int, int] = {}  # of each lodger
        self.owed: dict[int, int] = {}  # blocks, to each host

    @property
    def num_owed(self) -> int:
        """Blocks that come back to hosts."""
        return sum(self.owed.values()) if self.owed else 0

    def __iter__(self) -> Iterator[Loan]:
        return (loan for loans in self._loans.values() for loan in loans)

    def __len__(self) -> int:
        return len(self._host)

    def host_of(self, slot: int) -> int:
        """The host of the sequence in a slot; -1: it has none."""
        return self._host.get(slot, -1)

    def num_reserved(self, slot: int) -> int:
        """The blocks of a slot's reservation: what it may hold, what it lends, what it is owed."""
        lent = sum(loan.num_blocks for loan in self._loans.get(slot, ()))
        return self._reservations.most(slot) + lent + self.owed.get(slot, 0)

    def loans_of(self, host: int) -> Iterator[tuple[Loan, int]]:
        """The loans of a host, the one that is due first first, each with the first block of its
        host that it stands for: there it is due.
        """
        block = self.due_block(host)
        for loan in self._loans.get(host, ()):
            yield loan, block
            block += loan.num_blocks

    def lend(self, host: int, lodger: int, count: int, num_blocks: int) -> None:
        """Reserve `num_blocks` for a slot without a reservation, those that it holds among them;
        `count` of them are lent by `host`, which does not hold them. Of all its loans this one is
        due first. Raises ValueError where the host has too few, or the lodger a reservation.
        """
        if self._reservations.has(lodger) or not 0 < count <= num_blocks:
            raise ValueError(f"slot {lodger} cannot borrow {count} of {num_blocks} blocks")
        if self._reservations.unheld(host) < count:
            raise ValueError(f"slot {host} has no {count} blocks to lend")
        self._reservations.change(host, -count)
        self._reservations.reserve(lodger, num_blocks)
        self._loans.setdefault(host, []).insert(0, Loan(host, lodger, count))
        self._host[lodger] = host

    def resize(self, slot: int, num_blocks: int) -> None:
        """Reserve so many blocks in all, as a sequence is predicted to end elsewhere; the caller
        has checked that as many more are unreserved.

        What it holds stays. A host that needs fewer needs those no more that it lends, the last
        ones first: they are their lodgers' own. A lodger that needs fewer gives back to its host
        first. One that is both keeps what it has: to tell its lodgers' blocks apart is worth less.
        """
        by = num_blocks - self.num_reserved(slot)
        if by >= 0:
            self._reservations.change(slot, by)
        elif slot in self._loans:
            if slot not in self._host:
                self._shrink_host(slot, -by)
        else:
            self._shrink(slot, -by)

    def due(self, known: Int32, lead: int, block_size: int) -> list[int]:
        """The lodgers that have to leave now: those that are due first of hosts that compute the
        token which needs a lent block within `lead` tokens, where slots have so many known ones.
        """
        if not self._loans:
            return []
        return [
            loans[0].lodger
            for host, loans in self._loans.items()
            if int(known[host]) + lead > self.due_block(host) * block_size
        ]

    def due_block(self, host: int) -> int:
        """The first lent block of a host: its first loan is due at the first token there."""
        return self._reservations.most(host) + self.owed.get(host, 0)

    def release(self, slots: list[int]) -> None:
        """The sequences in these slots leave, and their reservations with them: what they borrowed
        is owed to their hosts, and what they lent belongs to those that have it.
        """
        if not self._host and not self.owed:
            return
        for slot in slots:
            self.owed.pop(slot, None)
            lodgers = self._loans.pop(slot, [])
            for loan in lodgers:
                del self._host[loan.lodger]
            if slot in self._host:
                self._leave_host(slot, lodgers)

    def clear(self) -> None:
        """All reservations are given up, and all loans with them."""
        self._loans.clear()
        self._host.clear()
        self.owed.clear()

    def settle(self, num_available: int) -> None:
        """Give back to hosts what they are owed, as far as it is there."""
        if not self.owed:
            return
        room = num_available - self._reservations.num_unheld
        for host, owed in list(self.owed.items()):
            given = min(owed, max(0, room))
            self._reservations.change(host, given)
            room -= given
            if given == owed:
                del self.owed[host]
            else:
                self.owed[host] = owed - given

    def check(self) -> None:
        """Raises LedgerError where a loan is nobody's, in a circle, or more than its lodger has."""
        lodgers = [loan.lodger for loan in self]
        hosts = {loan.lodger: loan.host for loan in self}
        if hosts != self._host or len(lodgers) != len(hosts):
            raise LedgerError("a lodger has another host, or two")
        for loan in self:
            if not (self._reservations.has(loan.host) and self._reservations.has(loan.lodger)):
                raise LedgerError(f"{loan}: not both have a reservation")
            if not 0 < loan.num_blocks <= self.num_reserved(loan.lodger):
                raise LedgerError(f"{loan}: more than its lodger reserved, or nothing")
            above, seen = loan.host, {loan.lodger}
            while above >= 0:
                if above in seen:
                    raise LedgerError(f"{loan}: lent in a circle")
                seen.add(above)
                above = self._host.get(above, -1)
        if any(owed <= 0 or not self._reservations.has(host) for host, owed in self.owed.items()):
            raise LedgerError("blocks are owed to nobody")

    def _shrink_host(self, host: int, count: int) -> None:
        """A host that is no lodger reserves so many blocks less."""
        for place in range(len(self._loans[host]) - 1, -1, -1):
            loan = self._loans[host][place]
            cut = min(count, loan.num_blocks)
            count -= cut
            self._put(host, place, [loan._replace(num_blocks=loan.num_blocks - cut)])
        self._shrink(host, count)

    def _shrink(self, slot: int, count: int) -> None:
        """One that lends nothing any more reserves so many blocks less, as far as it can."""
        if count and (owed := self.owed.pop(slot, 0)):
            cut = min(count, owed)
            count -= cut
            if owed > cut:
                self.owed[slot] = owed - cut
        given = min(count, self._reservations.unheld(slot))
        self._reservations.change(slot, -given)
        host = self._host.get(slot, -1)
        if given and host >= 0:
            place = self._place(slot)
            loan = self._loans[host][place]
            back = min(given, loan.num_blocks)
            self._reservations.change(host, back)
            self._put(host, place, [loan._replace(num_blocks=loan.num_blocks - back)])

    def _place(self, lodger: int) -> int:
        """Where a lodger's loan stands among those of its host."""
        loans = self._loans[self._host[lodger]]
        return next(place for place, loan in enumerate(loans) if loan.lodger == lodger)

    def _put(self, host: int, place: int, loans: list[Loan]) -> None:
        """Put these loans of a host in the place of one; those of nothing are over."""
        kept = [loan for loan in loans if loan.num_blocks]
        old = self._loans[host][place].lodger
        del self._host[old]
        self._host.update((loan.lodger, host) for loan in kept)
        self._loans[host][place : place + 1] = kept
        if not self._loans[host]:
            del self._loans[host]

    def _leave_host(self, slot: int, lodgers: list[Loan]) -> None:
        """A lodger leaves: its host takes over its lodgers, as far as it had lent to it."""
        host, place = self._host[slot], self._place(slot)
        left = self._loans[host][place].num_blocks
        taken_over: list[Loan] = []
        for loan in lodgers:
            count = min(left, loan.num_blocks)
            left -= count
            taken_over.append(Loan(host, loan.lodger, count))
        self._put(host, place, taken_over)
        if left:
            self.owed[host] = self.owed.get(host, 0) + left
