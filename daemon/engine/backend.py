"""Which attention and which small operations suit a device and dtype."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.attention_torch import TorchAttention
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.ops import Ops, TorchOps

Attend = Callable[[FlatBatch, KVCache], PagedAttention]


@dataclass(frozen=True, slots=True)
class Backend:
    """How to compute what is not a matrix product."""

    name: str
    attend: Attend
    ops: Ops


def torch_backend() -> Backend:
    """Plain torch: the reference, on every device."""
    return Backend("torch", TorchAttention, TorchOps())


def choose(device: torch.device, dtype: torch.dtype) -> Backend:
    """The fastest backend that this machine has for a device and dtype."""
    if device.type == "cuda":
        from daemon.engine.attention_cuda import CudaAttention

        return Backend("triton", CudaAttention, TorchOps())
    if dtype is torch.float32:
        try:
            return _compiled()
        except (ImportError, OSError):  # no numba, or a torch with another OpenMP
            return torch_backend()
    return torch_backend()


def _compiled() -> Backend:
    from daemon.engine.cpu.attention import CpuAttention
    from daemon.engine.cpu.ops import CpuOps
    from daemon.engine.cpu.team import Team

    team = Team()
    return Backend("numba", lambda batch, cache: CpuAttention(batch, cache, team), CpuOps(team))
