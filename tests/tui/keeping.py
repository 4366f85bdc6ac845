"""The invented daemon under policies that keep room for answers by predictions."""

import msgspec

from daemon.protocol.control import (
    GroupStatus,
    LendingStatus,
    LoanStatus,
    PeakStatus,
    ReservedStatus,
    Snapshot,
)
from tests.tui import scenario


def lending(step: int) -> Snapshot:
    """The busy daemon under a policy that lends: two lenders on gpu0, one borrower lends itself."""
    busy = scenario.snapshot(step)
    loans = (
        LoanStatus(1002, -1, 0, -1, 640, 40, 100, 50),
        LoanStatus(1004, 1002, 20, 800, 180, 12, 25, 8),
        LoanStatus(1006, 1004, 8, 272, 100, 6, 10, 0),
        LoanStatus(1008, 1002, 30, 1120, 300, 19, 30, 0),
        LoanStatus(1010, -1, 0, -1, 320, 20, 40, 10),
        LoanStatus(1012, 1010, 10, 480, 90, 6, 12, 0),
    )
    kept = ReservedStatus(
        ready=3,
        ready_blocks=21,
        num_groups=14,
        groups=(GroupStatus(512, 4, 2), GroupStatus(1024, 2, 1), GroupStatus(96, 1, 0)),
        lending=LendingStatus(num_hosts=4, num_loans=7, num_blocks=73, num_owed=5, shown=loans),
    )
    return _keeping(busy, kept, "synced")


def packing(step: int) -> Snapshot:
    """The busy daemon under the policy that lets answers begin by the future peak."""
    kept = ReservedStatus(peak=PeakStatus(1946, 83), num_groups=1, groups=(GroupStatus(96, 3, 0),))
    return _keeping(scenario.snapshot(step), kept, "packed")


def _keeping(busy: Snapshot, kept: ReservedStatus, policy: str) -> Snapshot:
    first = msgspec.structs.replace(
        busy.instances[0],
        policy=policy,
        kv_written=0.41,
        batch_budget=512,
        newest_tokens=tuple(64 * (place % 9) for place in range(64)),
        reserved=kept,
    )
    return msgspec.structs.replace(busy, instances=(first, *busy.instances[1:]))
