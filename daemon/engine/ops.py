"""What a fused decoder computes between its matrix products, in plain torch."""

from typing import Protocol

import torch
from torch.nn.functional import rms_norm, silu


class Ops(Protocol):
    """The small operations; states are rows of T tokens, and may be changed where said."""

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """`states` [T, width] += `added`, then its RMS norm, as a new tensor."""
        ...

    def norm_heads(self, states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
        """RMS norm of each head of `states` [T, heads, head_dim], in place."""
        ...

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary positions of `states` [T, heads, head_dim], in place; `cos` [T, rotary_dim]."""
        ...

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half of `states` [T, 2 * width]."""
        ...


class TorchOps:
    """`Ops` for every device and dtype, and the reference for others."""

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        """See `Ops`."""
        if added is not None:
            states += added
        return rms_norm(states, weight.shape, weight, epsilon)

    def norm_heads(self, states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
        """See `Ops`."""
        states.copy_(rms_norm(states, weight.shape, weight, epsilon))

    def rotate(self, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """See `Ops`."""
        rotated = states[..., : cos.shape[-1]]
        low, high = rotated.chunk(2, -1)
        turned = torch.cat((-high, low), -1)
        rotated.copy_(rotated * cos.unsqueeze(1) + turned * sin.unsqueeze(1))

    def silu_mul(self, states: torch.Tensor) -> torch.Tensor:
        """See `Ops`."""
        gate, up = states.chunk(2, -1)
        return silu(gate) * up
