"""The short convolution of a fused decoder's layer, in place of attention (LFM2)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.children import child_names
from daemon.engine.layers.ops import Angles, Norm, Ops
from daemon.engine.layers.recurrent.functions import current_recurrence
from daemon.engine.layers.recurrent.recurrence import Convolution

_CHILDREN = {"in_proj", "conv", "out_proj"}


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """The convolution behind a layer's first projection [T, 3 * width]: gates of its inputs, gates
    of its outputs, and inputs.
    """

    taps: torch.Tensor  # [width, K]
    bias: torch.Tensor | None  # [width]

    @property
    def width(self) -> int:
        """Numbers of a token that the convolution gives."""
        return len(self.taps)

    def norms(self) -> list[Norm]:
        """Every norm: none."""
        return []

    def products(self) -> list[object]:
        """Matrix products between the first projection and the convolution: none."""
        return []

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        return [self.taps] if self.bias is None else [self.taps, self.bias]

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """The outputs [T, width] from a first projection. It reads and writes its sequences'
        states.
        """
        gates, of_outputs, inputs = projected.chunk(3, 1)
        convolution = Convolution.over(gates * inputs, self.taps, self.bias, activated=False)
        return of_outputs * current_recurrence().convolve(layer, convolution)


def is_short_convolution(module: Any) -> bool:
    """Whether a module of transformers has the parts of such a convolution."""
    names = child_names(module)
    return names == _CHILDREN and isinstance(module.conv, nn.Conv1d)


def short_convolution(module: Any) -> ShortConvolution:
    """The convolution that a module of transformers is."""
    return ShortConvolution(
        taps=module.conv.weight.detach().squeeze(1).contiguous(),
        bias=None if module.conv.bias is None else module.conv.bias.detach(),
    )
