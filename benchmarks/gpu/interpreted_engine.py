"""The engine on the CPU, but with the Triton kernels (interpreted) for its attention."""

from dataclasses import replace

from benchmarks.gpu.engine_runs import Run
from daemon.engine.attention_cuda import CudaAttention
from daemon.engine.backend import Backend
from daemon.engine.ops import TorchOps
from daemon.engine.step import Engine


def with_kernels(engine: Engine) -> Run:
    """How plans run on this engine's model, cache and slots as they would on a GPU."""
    return replace(engine, backend=Backend("triton", CudaAttention, TorchOps())).run
