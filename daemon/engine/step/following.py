"""Sampling where several ranks compute one model: the first samples, the others are told.

They are told at the end of a step, by way of the ranks' sums: the tokens, which rows are broken,
and which draws are kept. They keep no histories, no grammars and no rules.
"""

from typing import Any

import numpy as np
import torch

from daemon.engine.layers.ranks import Ranks
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.sampled import Sampled
from daemon.engine.sampler.sampler import Integers, Sampler
from daemon.engine.step.grammar import SlotGrammars
from daemon.protocol.worker import Join
from daemon.state.request import SamplingParams

_TOLD = 3
"""int64 that the others are told of a row: its token, whether it is broken, whether it is kept."""


class LeadingSampler(Sampler):
    """The first rank's: it tells the others what it sampled."""

    def __init__(self, ranks: Ranks, *args: Any) -> None:
        super().__init__(*args)
        self._ranks = ranks

    def sample(
        self,
        logits: torch.Tensor,
        slots: Integers,
        positions: Integers,
        allowed: Allowed | None = None,
        drafted: Drafted | None = None,
    ) -> Sampled:
        """See `Sampler`."""
        sampled = super().sample(logits, slots, positions, allowed, drafted)
        kept = torch.ones_like(sampled.chosen[:1])
        if sampled.kept is not None:
            kept[0] = torch.from_numpy(sampled.kept)
        self._ranks.gather(torch.cat((sampled.chosen, kept)).T, _widths(self._ranks), reads=False)
        return sampled


class FollowingSampler(Sampler):
    """Any other rank's: it samples nothing."""

    def __init__(self, ranks: Ranks, *args: Any) -> None:
        super().__init__(*args)
        self._ranks = ranks

    def join(
        self, slot: int, sampling: SamplingParams, num_prompt_tokens: int, history: Integers = ()
    ) -> None:
        """Nothing: only the first rank knows how a sequence samples."""

    def leave(self, slot: int) -> None:
        """Nothing."""

    def sample(
        self,
        logits: torch.Tensor,
        slots: Integers,
        positions: Integers,
        allowed: Allowed | None = None,
        drafted: Drafted | None = None,
    ) -> Sampled:
        """The tokens that the first rank sampled for these rows."""
        own = torch.empty((len(slots), 0), dtype=torch.int64, device=self.device)
        found = self._ranks.gather(own, _widths(self._ranks)).T.contiguous()
        kept = None if drafted is None else found[2].cpu().numpy().astype(np.bool_)
        return Sampled(found[:2], found[:2].cpu(), None, kept)


class NoGrammars(SlotGrammars):
    """Grammars of a rank that does not sample: none."""

    def join(self, join: Join) -> None:
        """Nothing."""


def _widths(ranks: Ranks) -> list[int]:
    return [_TOLD, *[0] * (ranks.world_size - 1)]
