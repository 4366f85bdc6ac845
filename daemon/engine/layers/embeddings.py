"""Embeddings of tokens, looked up: plain rows, or rows of a quantised weight."""

from typing import Any, Protocol

import torch
from torch.nn.functional import embedding

from daemon.engine.layers.ops import Ops
from daemon.engine.quantised.linear import QuantisedEmbedding
from daemon.engine.quantised.weight import QuantisedWeight


class Embeddings(Protocol):
    """The states that tokens begin as."""

    @property
    def width(self) -> int:
        """Numbers of a state."""

    def __call__(self, tokens: torch.Tensor, /) -> torch.Tensor:
        """States [T, width] of `tokens` int64 [T]."""


class PlainEmbeddings:
    """Rows of `weight` [vocab, width]."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.width = weight.shape[1]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return embedding(tokens, self.weight)


class QuantisedRows:
    """Rows of a quantised weight, in the type that states have."""

    def __init__(self, weight: QuantisedWeight, dtype: torch.dtype, ops: Ops) -> None:
        self.weight = weight
        self.width = weight.columns
        self._dtype = dtype
        self._ops = ops

    @property
    def weights(self) -> list[QuantisedWeight]:
        """The quantised weights that it holds, as layers have them."""
        return [self.weight]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return self._ops.look_up(self.weight, tokens).to(self._dtype)


def embeddings_of(module: Any, ops: Ops) -> Embeddings:
    """How to look tokens up in a model's embedding."""
    if isinstance(module, QuantisedEmbedding):
        return QuantisedRows(module.weights[0], module.dtype, ops)
    return PlainEmbeddings(module.weight)
