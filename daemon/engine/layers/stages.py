"""The ends of a pipeline stage: states come in from the stage before and go out to the next.

The first stage looks tokens up, the last one has the head. What lies between is a model of its own
with fewer layers, transformers' modules or the straight decoder, and computes as any other.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from daemon.engine.layers.ranks import RankPart, Ranks
from daemon.models.rank_shares import Range
from daemon.protocol.worker import StagesWorked


class StageLinks(Ranks, Protocol):
    """The ranks of an instance whose ranks are stages, as one of them sees them."""

    stage: int
    layers: Range  # its own

    @property
    def is_last(self) -> bool:
        """Whether no stage is behind this one."""

    def send(self, states: torch.Tensor) -> None:
        """Hand `states` [T, width] over to the next stage, which may be busy."""

    def receive(self) -> torch.Tensor:
        """The states [T, width] that the stage before hands over next."""

    def worked(self) -> StagesWorked:
        """The steps' time, where this is the last stage, and what each stage computed of it."""


class StageEntry(nn.Module):
    """An embedding that looks nothing up: the states of a step's tokens are the stage before's."""

    def __init__(self, links: StageLinks, width: int) -> None:
        super().__init__()
        self.links = links
        self.width = width
        self._received = torch.empty(0)

    @property
    def weight(self) -> torch.Tensor:
        """No numbers, for modelling code that asks where an embedding lies."""
        return self._received.new_empty(0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """No numbers [..., width] of `tokens` [...]: what reads embeddings beside the first layer
        would read another stage's, and shows in logits that are no numbers.
        """
        self._received = self.links.receive().view(*tokens.shape, self.width)
        return torch.full_like(self._received, torch.nan)

    def enter(self, _layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the first layer: what was received, whatever was done to it since, such
        as adding positions, which the first stage has done.
        """
        return self._received, *args[1:]


class StageHead(RankPart):
    """The head of the last stage, and in its place on the others what hands states over.

    While a model is tried all stages get the logits, so that they come to the same verdict.
    """

    def __init__(self, inner: Any, ranks: StageLinks, width: int) -> None:
        """`inner`: the head, or None; `width`: of logits."""
        super().__init__(inner, ranks)
        self.links = ranks
        self.out_features = width
        self.trial = StageTrial()

    @property
    def weight(self) -> torch.Tensor:
        """See `RankPart`; without a head, no numbers of the type that states have."""
        found: torch.Tensor = self.trial.like if self.inner is None else self.inner.weight
        return found

    def over(self, inner: Any) -> "StageHead":
        """See `RankPart`."""
        found = StageHead(inner, self.links, self.out_features)
        found.trial = self.trial
        return found

    def prepared(self, prepare: Callable[[Any], Any]) -> "StageHead":
        """See `RankPart`."""
        return self.over(None if self.inner is None else prepare(self.inner))

    def leave(self, _layer: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Hand over what the last layer of a stage gives, where one is behind it."""
        states = output[0] if isinstance(output, tuple) else output
        self.trial.like = states.new_empty(0)
        self.links.send(states.flatten(0, -2))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of `states` [..., width], or no column of them."""
        if self.inner is None:
            return self.shared(states.new_empty(*states.shape[:-1], 0))
        return self.shared(self.inner(states))

    def shared(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits on all stages while the model is tried, later as they are."""
        if not self.trial.goes_on:
            return logits
        widths = [self.out_features, *[0] * (self.links.world_size - 1)]
        rows = logits.flatten(0, -2).float()  # stages may compute in unlike types
        whole = self.links.gather(rows, widths)
        return whole.view(*logits.shape[:-1], -1)


class StageTrial:
    """Whether a model is being tried, for all heads that are made of one."""

    goes_on = True
    like = torch.empty(0)  # of the type of what was handed over last


class ReceivedRows:
    """The straight decoder's states of tokens, received."""

    scale = 1.0

    def __init__(self, entry: StageEntry) -> None:
        self._entry = entry
        self.width = entry.width

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return self._entry.links.receive()

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Embeddings`."""
        return self.rows(tokens)
