"""Embeddings of tokens, looked up: plain rows, or rows of a quantised weight."""

from typing import Any, Protocol

import torch
from torch.nn.functional import embedding

from daemon.engine.quantised.linear import QuantisedEmbedding


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


class RowsOf:
    """Rows of a module's own lookup."""

    def __init__(self, module: QuantisedEmbedding) -> None:
        self.module = module
        self.width = module.weights[0].columns

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        states: torch.Tensor = self.module(tokens)
        return states


def embeddings_of(module: Any) -> Embeddings:
    """How to look tokens up in a model's embedding."""
    if isinstance(module, QuantisedEmbedding):
        return RowsOf(module)
    return PlainEmbeddings(module.weight)
