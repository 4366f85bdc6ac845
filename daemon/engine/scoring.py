"""Log-probabilities of prompts' own tokens, for the sequences that ask for them.

The logits at each of a prompt's tokens foretell the next one. After a step has computed some of
such a prompt, they are computed once more with logits for each, a few tokens at a time: those of a
whole prompt would fill a GPU. Keys and values are written again where they are, as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from daemon.engine.metadata import FlatBatch, part
from daemon.engine.protocol import Join, Logprobs, PromptLogprobs
from daemon.engine.sampler.logprobs import logprobs_of
from daemon.wire.columns import Column, Int64, int32

PIECE_TOKENS = 128

Compute = Callable[[FlatBatch], torch.Tensor]
"""Logits [R, vocab] of a batch's sampled tokens."""


@dataclass(frozen=True, slots=True)
class _Asker:
    """A slot's sequence that asks."""

    sequence: int
    prompt: Int64  # [P] token ids
    depth: int  # the best tokens wanted beside the prompt's own


class PromptScorer:
    """Which slots' sequences ask, and their answers."""

    def __init__(self) -> None:
        self._askers: dict[int, _Asker] = {}

    def join(self, join: Join) -> None:
        """A sequence takes a slot."""
        depth = join.sampling.prompt_logprobs
        if depth >= 0:
            prompt = join.history[: join.num_prompt_tokens].astype(np.int64)
            self._askers[join.slot] = _Asker(join.sequence, prompt, depth)

    def leave(self, slot: int) -> None:
        """Forget the slot's sequence."""
        self._askers.pop(slot, None)

    def score(self, slots: Column, flat: FlatBatch, compute: Compute) -> tuple[PromptLogprobs, ...]:
        """What a step, just computed, tells of the prompts in its rows [B], which hold `slots`."""
        if not self._askers:
            return ()
        told = []
        for row, slot in enumerate(slots.tolist()):
            asker = self._askers.get(slot)
            if asker is not None:
                start = int(flat.starts[row])
                # The last token's logits are about the answer.
                count = min(int(flat.counts[row]), len(asker.prompt) - 1 - start)
                for offset in range(0, count, PIECE_TOKENS):
                    size = min(PIECE_TOKENS, count - offset)
                    told.append(_scored(asker, _piece(flat, row, offset, size), compute))
        return tuple(told)


def _scored(asker: _Asker, piece: FlatBatch, compute: Compute) -> PromptLogprobs:
    logits = compute(piece)
    first = int(piece.starts[0]) + 1
    targets = torch.from_numpy(asker.prompt[first : first + len(logits)]).to(logits.device)
    found = logprobs_of(logits, targets, np.full(len(logits), asker.depth, np.int32))
    assert isinstance(found, Logprobs)
    return PromptLogprobs(asker.sequence, first, found.chosen, found.top_ids, found.top_values)


def _piece(flat: FlatBatch, row: int, offset: int, count: int) -> FlatBatch:
    """Some tokens of one row as a batch of its own, whose every token is sampled."""
    piece = part(flat, row, offset, count)
    return replace(
        piece,
        sampled_tokens=np.arange(count),
        sampled_slots=int32([0] * count),
        sampled_positions=piece.positions + 1,
    )
