"""Ranks on one machine that sum and gather over memory which all of them map.

Each operation is one compiled call: it copies this rank's part into the memory, waits for the
others by reading their counters, and adds up all parts in the order of the ranks. No operation
sleeps in the kernel unless a rank is late by milliseconds.
"""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from daemon.engine.cpu import rank_kernels
from daemon.engine.cpu.kernels import BY_ADDRESS, run_program
from daemon.engine.cpu.rank_kernels import LATE, LEFT, LINE, STUCK, WORLD
from daemon.engine.cpu.team import Call, Team
from daemon.engine.layers.ranks import RankError, TellsByGather

AREA_BYTES = 4 << 20
"""Bytes that a rank hands over at once: 256 tokens of 4096 numbers."""

MOST_RANKS = WORLD
"""Most ranks of an instance."""

_LINE_BYTES = 8 * LINE


def shared_bytes(world_size: int) -> int:
    """Bytes of the memory that `world_size` ranks share."""
    return world_size * (_LINE_BYTES + 2 * AREA_BYTES)


class SharedMemoryRanks(TellsByGather):
    """This rank's end of the memory; see `daemon.engine.layers.ranks.Ranks`."""

    def __init__(
        self, memory: int, rank: int, world_size: int, deadline_s: float, beside_bytes: int = 0
    ) -> None:
        """`memory`: a descriptor of a memfd that was empty at first; it may be closed afterwards.
        `deadline_s`: how long a rank may be late; `beside_bytes`: shared behind what all use.
        """
        self.rank, self.world_size = rank, world_size
        self._deadline_s = deadline_s
        size_bytes = shared_bytes(world_size) + beside_bytes
        os.ftruncate(memory, size_bytes)  # every rank does, to the same size
        self._mapped = mmap.mmap(memory, size_bytes)
        self._lines = np.frombuffer(self._mapped, np.int64, LINE * world_size).reshape(-1, LINE)
        self._wrong = np.zeros(4, np.int64)
        self.deadline_s = deadline_s
        lines = self._address = self._lines.ctypes.data
        self._place = (
            lines,
            lines + world_size * _LINE_BYTES,
            AREA_BYTES,
            rank,
            world_size,
            self._wrong.ctypes.data,
        )
        self._team = Team(run_program)
        self._begins: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def deadline_s(self) -> float:
        """How long a rank may be late."""
        return self._deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._wrong[1] = int(1e9 * deadline_s)

    def sum_call(self, states: torch.Tensor) -> Call:
        """The call that sums dense float32 `states` in place, for programs; `check` afterwards."""
        place = *self._place, states.data_ptr(), states.numel()
        return 1, BY_ADDRESS, address(rank_kernels.sum_item), *place

    def sum(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ranks`; narrow numbers are added in float32 and rounded once."""
        wide = states.float().contiguous()
        self._team.run_here(self.sum_call(wide))
        self.check()
        return wide.to(states.dtype)

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """See `Ranks`."""
        rows = rows.contiguous()
        whole = rows.new_empty((len(rows), sum(widths)) if reads else (0,))
        self._team.run_here(self.gather_call(rows, widths, whole))
        self.check()
        return whole

    def gather_call(self, rows: torch.Tensor, widths: Sequence[int], whole: torch.Tensor) -> Call:
        """The call that gathers dense `rows` into dense `whole`, or only gives them where that is
        empty, for programs; `check` afterwards. Raises RankError.
        """
        size_bytes = rows.element_size()
        sizes = tuple(width * size_bytes for width in widths)
        if max(sizes) > AREA_BYTES:
            raise RankError(f"a row of {max(sizes)} bytes is more than ranks hand over at once")
        if sizes not in self._begins:
            self._begins[sizes] = np.array([0, *np.cumsum(sizes)], np.int64)
        return (
            1,
            BY_ADDRESS,
            address(rank_kernels.gather_item),
            *self._place,
            rows.data_ptr(),
            len(rows),
            self._begins[sizes].ctypes.data,
            whole.data_ptr() if whole.numel() else 0,
            AREA_BYTES // max(*sizes, 1),
        )

    def check(self) -> None:
        """Raise RankError where an operation since the last check went wrong."""
        wrong = int(self._wrong[0])
        if not wrong:
            return
        what, rank = divmod(wrong, WORLD)
        if what == LATE:
            raise RankError(f"rank {rank} is late by more than {self.deadline_s:g} s")
        if what == STUCK:
            raise RankError(f"rank {rank} and this one wait for each other")
        said = "has ended" if what == LEFT else "computes something else than the others"
        raise RankError(f"rank {rank} {said}")

    def close(self) -> None:
        """See `Ranks`."""
        self._lines[self.rank, rank_kernels.IS_GONE] = 1


def address(kernel: Any) -> int:
    """A kernel's address, as calls name it."""
    return int(kernel.address)
