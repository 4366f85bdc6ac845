"""Which attention and which small operations suit a device and dtype."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.attention_torch import TorchAttention
from daemon.engine.decoder import Decoder
from daemon.engine.forward import Forward, Programs
from daemon.engine.kv_cache import KVCache
from daemon.engine.metadata import FlatBatch
from daemon.engine.ops import Ops, TorchOps
from daemon.engine.slots import Slots

log = logging.getLogger(__name__)

Attend = Callable[[FlatBatch, KVCache], PagedAttention]


@dataclass(frozen=True, slots=True)
class Backend:
    """How to compute what is not a matrix product, and steps that are compiled as a whole."""

    name: str
    attend: Attend
    ops: Ops
    compile: Callable[[Forward, KVCache, Slots], Programs | None] = lambda *_: None


def torch_backend() -> Backend:
    """Plain torch: the reference, on every device."""
    return Backend("torch", TorchAttention, TorchOps())


def choose(
    device: torch.device, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> Backend:
    """The fastest backend that this machine has for a device, a dtype and that of an 8-bit cache.

    A CPU's compiled kernels read no 8-bit cache: torch computes it there.
    """
    if device.type == "cuda":
        return _triton()
    if dtype is torch.float32 and kv_dtype is None:
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

    def compile_steps(forward: Forward, cache: KVCache, slots: Slots) -> Programs | None:
        if not isinstance(forward, Decoder) or not program.possible(forward):
            return None
        return program.DecodePrograms(forward, cache, slots, team, constants)

    return Backend("numba", attend, CpuOps(team, constants), compile_steps)


def _triton() -> Backend:
    from daemon.engine.cuda.attention import CudaAttention
    from daemon.engine.cuda.graphs import DecodeGraphs, cuda_capture, padded_sizes
    from daemon.engine.cuda.ops import TritonOps
    from daemon.engine.cuda.products import choose_products

    def compile_steps(forward: Forward, cache: KVCache, slots: Slots) -> Programs:
        choose_products(forward.products(), padded_sizes(len(slots.block_table)))
        return DecodeGraphs(forward, cache, slots, cuda_capture())

    return Backend("triton", CudaAttention.of, TritonOps(), compile_steps)
