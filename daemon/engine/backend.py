"""Which attention and which small operations suit a device and dtype."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.attention_torch import TorchAttention
from daemon.engine.decoder import Decoder
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.ops import Ops, TorchOps

log = logging.getLogger(__name__)

Attend = Callable[[FlatBatch, KVCache], PagedAttention]


class Programs(Protocol):
    """Whole decode steps, compiled for one decoder and pool."""

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, batch: FlatBatch
    ) -> torch.Tensor:
        """Logits [T, vocab] of a batch of single-token rows that are all sampled."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """How to compute what is not a matrix product, and steps that are compiled as a whole."""

    name: str
    attend: Attend
    ops: Ops
    takes: Callable[[FlatBatch], bool] = lambda _batch: False
    compile: Callable[[Decoder, KVCache], Programs | None] = lambda _decoder, _cache: None


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
        except (ImportError, OSError, RuntimeError) as error:
            # No numba, a torch with another OpenMP, or nowhere to keep what is compiled.
            log.warning("compiled kernels are off, torch computes all: %s", error)
    return torch_backend()


def _compiled() -> Backend:
    from daemon.engine.cpu import program
    from daemon.engine.cpu.attention import CpuAttention
    from daemon.engine.cpu.calls import Constants
    from daemon.engine.cpu.kernels import run_program
    from daemon.engine.cpu.ops import CpuOps
    from daemon.engine.cpu.team import Team

    team, constants = Team(run_program), Constants({})

    def attend(batch: FlatBatch, cache: KVCache) -> PagedAttention:
        return CpuAttention(batch, cache, team, constants)

    def compile_steps(decoder: Decoder, cache: KVCache) -> Programs | None:
        if not program.possible(decoder):
            return None
        return program.DecodePrograms(decoder, cache, team, constants)

    return Backend("numba", attend, CpuOps(team, constants), program.takes, compile_steps)
