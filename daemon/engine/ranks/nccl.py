"""Ranks on several GPUs that sum and gather by NCCL, through torch.

NCCL's own threads meet over TCP; they are kept to the loopback interface, and the ranks find each
other by a file, not by a port.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from daemon.engine.layers.ranks import RankError, TellsByGather

LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_ASYNC_ERROR_HANDLING": "1"}
"""Settings of NCCL: no other network, and an operation that is late ends its process."""


class NcclRanks(TellsByGather):
    """This rank's end; see `daemon.engine.layers.ranks.Ranks`."""

    def __init__(self, meeting: Path, rank: int, world_size: int, deadline_s: float) -> None:
        """`meeting`: a file that is not there yet, the same for all ranks."""
        os.environ.update(LOOPBACK)
        self.rank, self.world_size = rank, world_size
        self.deadline_s = deadline_s  # NCCL keeps to what it was at first
        try:
            store = dist.FileStore(str(meeting), world_size)
            dist.init_process_group(
                "nccl",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=deadline_s),
            )
        except (RuntimeError, ValueError) as error:
            raise RankError(f"rank {rank} does not meet the others by NCCL: {error}") from error

    def sum(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ranks`."""
        states = states.contiguous()
        dist.all_reduce(states)
        return states

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """See `Ranks`. NCCL gathers equal parts alone, so narrow ones are widened meanwhile."""
        most = max(widths)
        own = rows.new_zeros(len(rows), most)
        own[:, : rows.shape[1]] = rows
        parts = [torch.empty_like(own) for _ in widths]
        dist.all_gather(parts, own)
        if not reads:
            return rows.new_empty(0)
        return torch.cat([part[:, :w] for part, w in zip(parts, widths, strict=True)], 1)

    def close(self) -> None:
        """See `Ranks`."""
        if dist.is_initialized():
            dist.destroy_process_group()
