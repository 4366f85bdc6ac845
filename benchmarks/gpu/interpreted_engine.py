"""The engine on the CPU, but with the Triton kernels (interpreted) for its attention."""

from benchmarks.gpu.engine_runs import Run
from daemon.engine.attention import PagedAttention
from daemon.engine.attention_cuda import CudaAttention
from daemon.engine.metadata import FlatBatch
from daemon.engine.step import Engine


class KernelEngine(Engine):
    """An engine that computes on the CPU what it would compute on a GPU."""

    def _attention(self, flat: FlatBatch) -> PagedAttention:
        return CudaAttention(flat, self.cache)


def with_kernels(engine: Engine) -> Run:
    """How plans run on this engine's model, cache and slots with the kernels."""
    return KernelEngine(engine.model, engine.cache, engine.slots, engine.sampler).run
