"""An engine on the CPU that computes as on a GPU, its Triton kernels interpreted.

CUDA graphs are what a CPU has not: their work is done anew instead, on the same memory.
"""

from pathlib import Path

import torch

from daemon.engine.batch.slots import Slots
from daemon.engine.cuda.graphs import DecodeGraphs, Work
from daemon.engine.families import NONE, ByTorch
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.forward import Forward
from daemon.engine.loading.loader import load_model, torch_dtype
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend, triton_backend
from daemon.engine.step.step import Engine
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.worker.start import assemble
from daemon.protocol.worker import Load


def interpreted(load: Load, by_torch: ByTorch = NONE) -> Engine:
    """A worker's engine with a GPU's backend; its first step has not been computed."""
    folder = Path(load.model)
    model = load_model(folder, load.dtype, torch.device(load.device))
    shape = shape_here(folder)
    verdict = TrialVerdict(fused=True, compiled=True)  # a trial takes minutes
    backend = interpreted_backend(torch_dtype(load.dtype), by_torch)
    return assemble(model, shape, load, lambda _stage, _done: None, backend, verdict)


def interpreted_backend(dtype: torch.dtype, by_torch: ByTorch = NONE) -> Backend:
    """A GPU's backend for a CPU."""
    return triton_backend(dtype, by_torch, _graphs)


def _graphs(forward: Forward, cache: PagedKV, slots: Slots) -> DecodeGraphs:
    return DecodeGraphs(forward, cache, slots, _again)


def _again(work: Work) -> Work:
    work()
    return work
