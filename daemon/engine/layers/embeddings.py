"""Embeddings of tokens, looked up: plain rows, or rows of a quantised weight."""

from typing import Any, Protocol

import torch
from torch.nn.functional import embedding

from daemon.engine.layers.ops import Ops
from daemon.engine.layers.ranks import SplitEmbedding, own_rows
from daemon.engine.layers.stages import ReceivedRows, StageEntry
from daemon.engine.quantised.linear import QuantisedEmbedding, scale_of, scaled
from daemon.engine.quantised.weight import QuantisedWeight


class Embeddings(Protocol):
    """The states that tokens begin as."""

    scale: float

    @property
    def width(self) -> int:
        """Numbers of a state."""

    def rows(self, tokens: torch.Tensor, /) -> torch.Tensor:
        """Rows [T, width] of `tokens` int64 [T] as they are stored."""

    def __call__(self, tokens: torch.Tensor, /) -> torch.Tensor:
        """States [T, width] of `tokens` int64 [T]: their rows times `scale`."""


class PlainEmbeddings:
    """Rows of `weight` [vocab, width], times `scale`, rounded as they are, and `factor`."""

    def __init__(self, weight: torch.Tensor, scale: float = 1.0, factor: float = 1.0) -> None:
        self.weight = weight
        self.width = weight.shape[1]
        self.scale = scale * factor
        self._rounded, self._factor = scale, factor

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return embedding(tokens, self.weight)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return _times(scaled(self.rows(tokens), self._rounded), self._factor)


class QuantisedRows:
    """Rows of a quantised weight in the type that states have, scaled as those of
    `PlainEmbeddings`.
    """

    def __init__(
        self,
        weight: QuantisedWeight,
        dtype: torch.dtype,
        ops: Ops,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> None:
        self.weight = weight
        self.width = weight.columns
        self.scale = scale * factor
        self._rounded, self._factor = scale, factor
        self._dtype = dtype
        self._ops = ops

    @property
    def weights(self) -> list[QuantisedWeight]:
        """The quantised weights that it holds, as layers have them."""
        return [self.weight]

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return self._ops.look_up(self.weight, tokens).to(self._dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return _times(scaled(self.rows(tokens), self._rounded), self._factor)


class SplitRows:
    """Rows of which each rank has some."""

    def __init__(self, split: SplitEmbedding, own: Embeddings) -> None:
        self.own = own
        self.width, self.scale = own.width, own.scale
        self._split = split

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return own_rows(self._split, tokens, self.own.rows)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return own_rows(self._split, tokens, self.own)


def embeddings_of(module: Any, ops: Ops, factor: float = 1.0) -> Embeddings:
    """How to look tokens up in a model's embedding, whose states are `factor` times as large."""
    if isinstance(module, StageEntry):
        return ReceivedRows(module)
    if isinstance(module, SplitEmbedding):
        return SplitRows(module, embeddings_of(module.inner, ops, factor))
    if isinstance(module, QuantisedEmbedding):
        return QuantisedRows(module.weights[0], module.dtype, ops, module.scale, factor)
    return PlainEmbeddings(module.weight, scale_of(module), factor)


def _times(states: torch.Tensor, factor: float) -> torch.Tensor:
    return states if factor == 1.0 else states * factor
