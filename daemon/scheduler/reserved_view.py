"""An instance's reservations, for viewers: loans, groups, ready answers, the future peak.

EcoServe, sections 3.2 to 3.4. All of it is counted for a snapshot, and nothing between steps.
"""

import numpy as np

from daemon.memory.lending import Loan
from daemon.scheduler.fillers.decoupled import Decoupled
from daemon.scheduler.fillers.nested import Nested
from daemon.scheduler.fillers.packed import PackedByPeak
from daemon.scheduler.future_peak import future_peak
from daemon.scheduler.scheduler import Scheduler
from daemon.state.reserved import (
    MAX_GROUPS_SHOWN,
    MAX_LOANS_SHOWN,
    GroupStatus,
    LendingStatus,
    LoanStatus,
    PeakStatus,
    ReservedStatus,
)
from daemon.wire.columns import Slots

_NOBODY = -1


def written_share(scheduler: Scheduler) -> float:
    """The share of the pool's token places that hold the KV of a needed token."""
    kv, used = scheduler.kv, scheduler.running.unordered_slots
    if not kv.pool_tokens:
        return 0.0
    return kv.num_written(used, scheduler.slots.computed[used]) / kv.pool_tokens


def reserved_status(scheduler: Scheduler) -> ReservedStatus | None:
    """The reservations by predictions; None where the policy makes none."""
    filler = scheduler.filler
    if not isinstance(filler, Decoupled):
        return None
    table, kv, used = scheduler.slots, scheduler.kv, scheduler.running.unordered_slots
    reserving = kv.reservations.among(used)
    answering = table.computed[used] >= table.fed_until[used]
    ready = used[answering & ~reserving]
    begun = used[answering & reserving]
    groups = _groups(filler, begun, ready) if filler.grouped else []
    return ReservedStatus(
        ready=ready.size,
        ready_blocks=int(kv.charged[ready].sum()),
        num_groups=len(groups),
        groups=tuple(groups[:MAX_GROUPS_SHOWN]),
        lending=_lending(scheduler) if isinstance(filler, Nested) else None,
        peak=_peak(filler, used[reserving]) if isinstance(filler, PackedByPeak) else None,
    )


def _groups(filler: Decoupled, begun: Slots, ready: Slots) -> list[GroupStatus]:
    """Answers of the same predicted length in blocks; largest groups first. The filler groups those
    that are ready, and what has stopped by what is left of it.
    """
    block = filler.admission.kv.block_size
    slots = np.concatenate([begun, ready])
    is_ready = np.arange(slots.size) >= begun.size
    lengths = filler.ends.now(slots) - filler.slots.prompt[slots]
    tokens, group = np.unique(-(-lengths // block) * block, return_inverse=True)
    num_all = np.bincount(group, minlength=tokens.size)
    num_ready = np.bincount(group[is_ready], minlength=tokens.size)
    columns = tokens.tolist(), (num_all - num_ready).tolist(), num_ready.tolist()
    groups = [GroupStatus(*row) for row in zip(*columns, strict=True)]
    return sorted(groups, key=lambda group: (-group.num_begun - group.num_ready, group.num_tokens))


def _peak(filler: PackedByPeak, begun: Slots) -> PeakStatus:
    """The peak as answers begin by it: half a block of each is unused on average."""
    kv, known = filler.admission.kv, filler.slots.known[begun]
    peak = future_peak(known, np.maximum(filler.ends.now(begun) - known, 1), kv)
    if kv.has_windows:
        return PeakStatus(peak.peak, peak.num_steps)
    num_tokens = peak.peak + begun.size * kv.block_size // 2
    return PeakStatus(kv.blocks_for(num_tokens), peak.num_steps)


def _lending(scheduler: Scheduler) -> LendingStatus:
    lending = scheduler.kv.lending
    if not len(lending):
        return LendingStatus(num_owed=lending.num_owed)
    loans = list(lending)
    lenders = {loan.lender for loan in loans}
    return LendingStatus(
        num_hosts=len(lenders),
        num_loans=len(loans),
        num_blocks=sum(loan.num_blocks for loan in loans),
        num_owed=lending.num_owed,
        shown=_nested(scheduler, [slot for slot in lenders if lending.lender_of(slot) < 0]),
    )


def _nested(scheduler: Scheduler, lenders: list[int]) -> tuple[LoanStatus, ...]:
    """Lenders that borrow nothing, each before its borrowers, and these before theirs."""
    kv, table = scheduler.kv, scheduler.slots
    block = kv.block_size

    def left(lender: int) -> tuple[int, int]:
        return kv.lending.due_block(lender) * block - int(table.known[lender]), lender

    rows: list[LoanStatus] = []
    coming = [(Loan(_NOBODY, lender, 0), -1) for lender in sorted(lenders, key=left, reverse=True)]
    while coming and len(rows) < MAX_LOANS_SHOWN:
        loan, due_token = coming.pop()
        slot = loan.borrower
        lent = [(other, first * block) for other, first in kv.lending.loans_of(slot)]
        coming += lent[::-1]
        rows.append(
            LoanStatus(
                sequence=table.member(slot).id,
                host=table.member(loan.lender).id if loan.lender >= 0 else -1,
                num_borrowed=loan.num_blocks,
                due_token=due_token,
                num_tokens=int(table.known[slot]),
                num_held=int(kv.charged[slot]),
                num_reserved=kv.lending.num_reserved(slot),
                num_lent=sum(other.num_blocks for other, _ in lent),
            )
        )
    return tuple(rows)
