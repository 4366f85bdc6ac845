"""`daemon.engine.ops.Ops` on a GPU: each one Triton kernel, but for attention itself."""

import torch

from daemon.engine.attention import PagedAttention
from daemon.engine.cuda.attention import CudaAttention
from daemon.engine.kernels import add_norm, place, silu_mul
from daemon.engine.ops import Angles, Heads


class TritonOps:
    """See `Ops`. Nothing here waits for the device, so CUDA graphs can hold it."""

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        return add_norm(states, added, weight, epsilon)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """See `Ops`; `paged` must be a `CudaAttention`, or TypeError."""
        if not isinstance(paged, CudaAttention):
            raise TypeError(f"{type(paged).__name__} does not say where keys and values go")
        cache = paged.cache
        shape = (len(projected), heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
        states = projected.view(shape)
        place(
            states, *angles, cache.blocks, cache.scales, layer, paged.blocks, paged.offsets, heads
        )
        return paged.attend(layer, states[:, : heads.num_heads], heads.scale).flatten(1)

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        return silu_mul(states)
