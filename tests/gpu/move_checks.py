"""The kernel that moves rows of bytes, against plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.transfer import gpu_rows, rows
from daemon.engine.transfer.layout import ByteSpan
from daemon.wire.columns import Int32


@dataclass(frozen=True, slots=True)
class Case:
    """A pool's rows, the spans that move, and how many rows do."""

    row_bytes: int
    spans: tuple[ByteSpan, ...]
    count: int

    @property
    def name(self) -> str:
        """The case in short."""
        parts = " + ".join(f"{size} at {start}" for start, size, *_ in self.spans)
        return f"{self.count} rows, {parts} of {self.row_bytes}"

    @property
    def part_bytes(self) -> int:
        """Bytes of a row that move."""
        return sum(size for _, size, *_ in self.spans)


NUM_ROWS = 150
CASES = (
    Case(2048, (ByteSpan(0, 2048),), 5),
    Case(65_536, (ByteSpan(0, 65_536),), 3),
    Case(40_960, (ByteSpan(32_768, 4096), ByteSpan(36_864, 1024)), 70),
    Case(1544, (ByteSpan(8, 40), ByteSpan(1000, 16)), 9),
    Case(101, (ByteSpan(3, 7), ByteSpan(50, 51)), 4),
)


def move_checks(device: str) -> Iterator[Check]:
    """Gathered, scattered, and from pool to pool: every byte, and no other is touched."""
    for case in CASES:
        yield Check(f"move_rows {case.name}, bytes wrong", _wrong(case, device), 0)


def _wrong(case: Case, device: str) -> int:
    chance = np.random.default_rng(1)
    pools = chance.integers(0, 256, (2, NUM_ROWS, case.row_bytes), np.uint8)
    ours, theirs = (torch.from_numpy(pools.copy()) for _ in range(2))
    ours = ours.to(device)
    slots = [torch.zeros(case.count * case.part_bytes, dtype=torch.uint8) for _ in range(2)]
    slots[0] = slots[0].to(device)
    blocks, targets, last = (_chosen(case, chance) for _ in range(3))
    gpu_rows.gather(ours[0], case.spans, blocks, slots[0])
    gpu_rows.scatter(slots[0], ours[1], case.spans, targets)
    gpu_rows.across(ours[1], case.spans, targets, ours[0].data_ptr(), last)
    rows.gather(theirs[0], case.spans, blocks, slots[1])
    rows.scatter(slots[1], theirs[1], case.spans, targets)
    rows.scatter(slots[1], theirs[0], case.spans, last)
    pairs = (ours, theirs), (slots[0], slots[1])
    return sum(int((one.cpu() != other).sum()) for one, other in pairs)


def _chosen(case: Case, chance: np.random.Generator) -> Int32:
    return chance.permutation(NUM_ROWS)[: case.count].astype(np.int32)
