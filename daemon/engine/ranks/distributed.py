"""Ranks that sum and gather by torch.distributed: those on several GPUs, by NCCL.

The libraries' own threads meet over TCP; they are kept to the loopback interface, and the ranks
find each other by a file, not by a port. gloo computes the same on a CPU, for tests alone.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from daemon.base.logs import in_a_line
from daemon.engine.layers.ranks import RankError, TellsByGather
from daemon.models.shape import ModelError

NCCL, GLOO = "nccl", "gloo"
LOOPBACK = {
    "NCCL_SOCKET_IFNAME": "=lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
"""Settings of the libraries: no other network, and an operation of NCCL that is late ends its
process.
"""
NO_NCCL = "torch is built without NCCL here, which ranks on GPUs sum by: stages (ppN) need none"


class DistributedRanks(TellsByGather):
    """This rank's end; see `daemon.engine.layers.ranks.Ranks`.

    What lies elsewhere is taken to this rank's device and back: what ranks ask each other lies on
    the host.
    """

    def __init__(
        self,
        meeting: Path,
        rank: int,
        world_size: int,
        deadline_s: float,
        device: torch.device,
    ) -> None:
        """`meeting`: an empty file, or none yet, the same for all ranks. `device`: this rank's.

        Raises ModelError where torch has no NCCL for GPUs, RankError where the others do not come.
        """
        os.environ.update(LOOPBACK)
        self.rank, self.world_size, self.device = rank, world_size, device
        self._deadline_s = deadline_s
        on_gpu = device.type == "cuda"
        if on_gpu and not dist.is_nccl_available():
            raise ModelError(NO_NCCL)
        if on_gpu:
            torch.cuda.set_device(device)
        self._backend = NCCL if on_gpu else GLOO
        try:
            dist.init_process_group(
                self._backend,
                store=dist.FileStore(str(meeting), world_size),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=deadline_s),
                device_id=device if on_gpu else None,  # the cards meet now, not in the first step
            )
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (RuntimeError, ValueError) as error:
            said = f"rank {rank} does not meet the others by {self._backend}"
            raise RankError(f"{said}: {in_a_line(error)}") from error

    @property
    def deadline_s(self) -> float:
        """How long a rank may be late."""
        return self._deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        # torch has no other way to change it for a group that has met.
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=deadline_s), dist.group.WORLD)

    def sum(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ranks`; narrow numbers are rounded by each addition."""
        if not states.numel():
            return states
        total = states.to(self.device).contiguous()
        self._do(lambda: dist.all_reduce(total))
        return total.to(states.device)

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """See `Ranks`. Equal parts alone are gathered, so narrow ones are widened meanwhile."""
        most = max(widths)
        if not len(rows) or not most:
            return rows.new_empty((len(rows), sum(widths)))
        own = torch.zeros(len(rows), most, dtype=rows.dtype, device=self.device)
        own[:, : rows.shape[1]] = rows
        parts = [torch.empty_like(own) for _ in widths]
        self._do(lambda: dist.all_gather(parts, own))
        if not reads:
            return rows.new_empty(0)
        whole = torch.cat([part[:, :w] for part, w in zip(parts, widths, strict=True)], 1)
        return whole.to(rows.device)

    def close(self) -> None:
        """See `Ranks`. The end of the process closes what it shares with the others: to take the
        group apart would wait for ranks that may be gone.
        """

    def _nothing(self, num_rows: int) -> torch.Tensor:
        return torch.empty((num_rows, 0), dtype=torch.int64, device=self.device)

    def _do(self, operation: Callable[[], object]) -> None:
        """Do what all ranks do; a GPU may not have done it yet. Raises RankError."""
        own: AbstractContextManager[object] = nullcontext()
        if self.device.type == "cuda":  # a thread begins on device 0
            own = torch.cuda.device(self.device)
        try:
            with own:
                operation()
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:
            said = f"rank {self.rank} cannot go on with the others by {self._backend}"
            raise RankError(f"{said}: {in_a_line(error)}") from error
