"""`daemon.engine.layers.ops.Ops` on a GPU: Triton kernels, or torch where these are not trusted."""

import torch

from daemon.engine.cuda.attention import CudaAttention
from daemon.engine.cuda.triton import add_norm, gelu_mul, place, silu_mul
from daemon.engine.cuda.unpacking import can_read, look_up
from daemon.engine.families import ACTIVATION, BLOCKS, NONE, NORM, QKV, ByTorch
from daemon.engine.layers.attention import GroupedAttention, PagedAttention
from daemon.engine.layers.ops import Angles, Heads, Norm, Ops
from daemon.engine.quantised.weight import QuantisedWeight


class TritonOps(Ops):
    """See `Ops`. Nothing here waits for the device, so CUDA graphs can hold it."""

    def __init__(self, by_torch: ByTorch = NONE) -> None:
        self._by_torch = by_torch

    def look_up(self, weight: QuantisedWeight, tokens: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if BLOCKS in self._by_torch or weight.order is not None or not can_read(weight):
            return super().look_up(weight, tokens)
        return look_up(weight, tokens)

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        of_added: Norm | None = None,
    ) -> torch.Tensor:
        """See `Ops`."""
        if NORM in self._by_torch:
            return super().norm(states, added, norm, of_added)
        if added is not None and of_added is not None:
            added = add_norm(added, None, of_added.weight, of_added.epsilon)
        return add_norm(states, added, norm.weight, norm.epsilon)

    def attend(
        self,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        heads: Heads,
        angles: Angles,
    ) -> torch.Tensor:
        """See `Ops`; `paged` must be a `CudaAttention`, or TypeError."""
        if isinstance(paged, GroupedAttention):
            paged, layer = paged.place(layer) or (paged, layer)
        if QKV in self._by_torch or isinstance(paged, GroupedAttention):
            return super().attend(paged, layer, projected, heads, angles)
        if not isinstance(paged, CudaAttention):
            raise TypeError(f"{type(paged).__name__} does not say where keys and values go")
        cache = paged.cache
        shape = (len(projected), heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
        states = projected.view(shape)
        if heads.value_norm is not None:
            self.norm_heads(states[:, -heads.num_kv_heads :], heads.value_norm)
        place(
            states, *angles, cache.blocks, cache.scales, layer, paged.blocks, paged.offsets, heads
        )
        query = states[:, : heads.num_heads]
        return paged.attend(layer, query, heads.scale, heads.variant).flatten(1)

    def gelu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if ACTIVATION in self._by_torch:
            return super().gelu_mul(states)
        return gelu_mul(states)

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        if ACTIVATION in self._by_torch:
            return super().silu_mul(states)
        return silu_mul(states)
