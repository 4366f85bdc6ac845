"""Sampling where several ranks compute one model: the first samples, the others are told.

They are told the tokens, which rows are broken, and which draws are kept. They keep no histories,
no grammars and no rules. Ranks that share layers are told at the end of each step; a pipeline stage
begins its next steps meanwhile, and hears of tokens when a step needs them.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from daemon.engine.batch.download import download
from daemon.engine.layers.ranks import Ranks
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.sampled import Sampled
from daemon.engine.sampler.sampler import Integers, Sampler
from daemon.engine.step.grammar import SlotGrammars
from daemon.engine.step.scoring import PromptScorer
from daemon.engine.step.step import Begun, Engine
from daemon.protocol.worker import Join, Plan, Reply
from daemon.state.batch import Batch
from daemon.state.request import SamplingParams
from daemon.wire.columns import Int64, int32

MOST_UNHEARD = 16
"""Most steps whose tokens a stage has not heard; their ring holds more."""

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
        self._ranks.tell(torch.cat((sampled.chosen, kept)).T)
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
        found = self._ranks.hear(len(slots), _TOLD).T.contiguous()
        kept = None if drafted is None else found[2].cpu().numpy().astype(np.bool_)
        return Sampled(found[:2], download(found[:2]), None, kept)


@dataclass(frozen=True, slots=True)
class FollowingStage(Engine):
    """The engine of a stage before the last: a step ends where its states are handed over."""

    _unheard: deque[Int64] = field(default_factory=deque)  # the slots sampled by each step

    def begin(self, plan: Plan, came_s: float | None = None) -> Begun:
        """See `Engine`; the reply has no tokens."""
        batch = plan.batch
        if batch.drafts.size:  # how many are kept is needed at once
            self._hear(len(self._unheard))
            return super(FollowingStage, self).begin(plan, came_s)
        came_s = time.perf_counter() if came_s is None else came_s
        waited_s = self._apply(plan)
        self._hear(self._needed(batch))
        flat = self._flat(batch, plan.inputs)
        self._compute(flat)
        if len(flat.sampled_slots):
            self._unheard.append(flat.sampled_slots.astype(np.int64))
        elapsed_s, idle_s = self._times(came_s, waited_s)
        reply = Reply(batch.step, int32(), np.zeros(0, np.uint8), elapsed_s, idle_s)
        return Begun(self.stream.record(), lambda: reply)

    def _needed(self, batch: Batch) -> int:
        """How many steps' tokens have to be heard before a batch: those that its rows go on from,
        and the oldest where many are on their way.
        """
        own = batch.slots[batch.fed == 0]
        needed = [n for n, slots in enumerate(self._unheard, 1) if np.isin(own, slots).any()]
        return max([len(self._unheard) - MOST_UNHEARD, *needed], default=0)

    def _hear(self, count: int) -> None:
        """Take the tokens of so many steps, the oldest first."""
        ranks = self.backend.ranks
        assert ranks is not None
        for _ in range(count):
            slots = self._unheard.popleft()
            self.slots.take(slots, ranks.hear(len(slots), _TOLD)[:, 0].contiguous())


class NoGrammars(SlotGrammars):
    """Grammars of a rank that does not sample: none."""

    def join(self, join: Join) -> None:
        """Nothing."""


class NoScores(PromptScorer):
    """Scores of prompts on a stage that has no head: none."""

    def join(self, join: Join) -> None:
        """Nothing."""
