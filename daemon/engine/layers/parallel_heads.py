"""Attention and a mixer with states side by side in a fused decoder's layer (Falcon-H1)."""

from dataclasses import dataclass

import torch

from daemon.engine.layers.attention import PagedAttention
from daemon.engine.layers.mamba import Mamba2
from daemon.engine.layers.mlp import Layer
from daemon.engine.layers.ops import Angles, Heads, Norm, Ops


@dataclass(frozen=True, slots=True)
class ParallelHeads:
    """The mixer and the heads behind a layer's first projection, that of the mixer first."""

    mixer: Mamba2
    heads: Heads
    factors: torch.Tensor  # float32 [width of the projection], by which it is multiplied

    @property
    def width(self) -> int:
        """Numbers of a token that both give, those of the mixer first."""
        return self.mixer.width + self.heads.width

    @property
    def sizes(self) -> tuple[int, int]:
        """The parts of a token in the first projection."""
        return sum(self.mixer.sizes), sum(self.heads.sizes)

    def norms(self) -> list[Norm]:
        """Every norm."""
        return self.mixer.norms() + self.heads.norms()

    def products(self) -> list[object]:
        """Matrix products between the first projection and the heads: none."""
        return []

    def small_weights(self) -> list[torch.Tensor]:
        """The weights that belong to no product or norm."""
        return [self.factors, *self.mixer.small_weights()]

    def attend(
        self,
        ops: Ops,
        paged: PagedAttention,
        layer: int,
        projected: torch.Tensor,
        angles: Angles,
    ) -> torch.Tensor:
        """The outputs of both [T, width], side by side, from a first projection."""
        projected = projected * self.factors.to(projected.dtype)
        of_mixer, of_heads = projected.split(self.sizes, 1)
        mixed = self.mixer.attend(ops, paged, layer, of_mixer, angles)
        attended = self.heads.attend(ops, paged, layer, of_heads.contiguous(), angles)
        return torch.cat((mixed, attended), 1)


@dataclass(frozen=True, slots=True)
class SummedOutputs:
    """The sum of two layers' outputs, each of its own part of states and scaled."""

    layers: tuple[Layer, Layer]
    widths: tuple[int, int]  # of the parts
    scales: tuple[float, float]

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[T, N] of `states` [T, sum of widths]."""
        pairs = zip(self.layers, states.split(self.widths, 1), self.scales, strict=True)
        first, second = (layer(part.contiguous()) * scale for layer, part, scale in pairs)
        return first + second


def products_of(output: Layer) -> list[object]:
    """The matrix products of a layer behind heads."""
    return list(output.layers) if isinstance(output, SummedOutputs) else [output]
