"""The forward of a model: any batch of tokens, and whole decode steps prepared beforehand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.layers.attention import PagedAttention
from daemon.engine.sampler.rules import DrawRules
from daemon.wire.columns import Bools, Int32

Alone = Mapping[str, Callable[[], object]]
"""Calls that compute each operator of a step in all layers, by its name; results are dropped."""


class Forward(Protocol):
    """A model's forward pass over T flattened tokens."""

    def normed(
        self, tokens: torch.Tensor, positions: torch.Tensor, paged: PagedAttention
    ) -> torch.Tensor:
        """The states of all tokens [T, width] as `head` takes them."""

    def rows(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        paged: PagedAttention,
    ) -> torch.Tensor:
        """The states of some tokens [R, width] as `head` takes them; `wanted` indexes them."""

    def head(self, states: torch.Tensor, /) -> torch.Tensor:
        """Logits [R, vocab] of some of those states [R, width]."""

    def products(self) -> Sequence[object]:
        """Every matrix product, and perhaps what is none."""


@runtime_checkable
class Differing(Protocol):
    """A matrix product whose numbers depend on how many tokens are computed together."""

    def alike(self, count: int, other: int) -> bool:
        """Whether a token gets the same numbers among `count` tokens as among `other`, so that its
        answer is the same.
        """


@dataclass(frozen=True, slots=True)
class Repeated:
    """Tokens sampled for R rows of decodes by a multi-step program."""

    tokens: Int32  # [R, times]
    broken: Bools  # [R, times]: the logits left no token, and later tokens are invalid


class Programs(Protocol):
    """Whole decode steps, compiled for one model, pool and table of slots."""

    def takes(self, batch: FlatBatch) -> bool:
        """Whether a batch is one that it computes."""

    def logits(self, batch: FlatBatch) -> torch.Tensor:
        """Logits [R, vocab] of a batch that it takes; overwritten by the next step."""

    def repeated(self, batch: FlatBatch, rules: DrawRules) -> "Repeated | None":
        """Tokens sampled by `rules` where a batch of decodes is computed as often as they say, each
        time a token further; None where it cannot.
        """

    def alone(self, batch: FlatBatch) -> Alone:
        """Each operator of a batch that it takes; none where they are one whole."""

    def prepare(self) -> bool:
        """Compile one more step that may be wanted, while idle; False: all are there."""
