"""Log-probabilities of prompts' own tokens, for the sequences that ask for them.

The logits at each of a prompt's tokens foretell the next one. After a step has computed some of
such a prompt, they are computed once more with logits for each, a few tokens at a time: those of a
whole prompt would fill a GPU. Keys and values are written again where they are, equal but for
rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from daemon.engine.metadata import FlatBatch, part
from daemon.engine.protocol import Join, PromptLogprobs
from daemon.engine.sampler.logprobs import Scores, logprobs_of
from daemon.engine.upload import upload
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

    def score(self, slots: Column, flat: FlatBatch, compute: Compute) -> "Scored":
        """What a step, just computed, tells of the prompts in its rows [B], which hold `slots`."""
        told = list[_Piece]()
        if not self._askers:
            return Scored(told)
        for row, slot in enumerate(slots.tolist()):
            asker = self._askers.get(slot)
            if asker is not None:
                start = int(flat.starts[row])
                # The last token's logits are about the answer.
                count = min(int(flat.counts[row]), len(asker.prompt) - 1 - start)
                for offset in range(0, count, PIECE_TOKENS):
                    size = min(PIECE_TOKENS, count - offset)
                    told.append(_scored(asker, _piece(flat, row, offset, size), compute))
        return Scored(told)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some tokens of one prompt, scored."""

    sequence: int
    first: int  # index in the prompt
    found: Scores


@dataclass(frozen=True, slots=True)
class Scored:
    """What a step told of prompts."""

    pieces: list[_Piece]

    def read(self) -> tuple[PromptLogprobs, ...]:
        """It on the host, once the device is done."""
        told = ((one, one.found.read()) for one in self.pieces)
        return tuple(
            PromptLogprobs(one.sequence, one.first, found.chosen, found.top_ids, found.top_values)
            for one, found in told
        )


def _scored(asker: _Asker, piece: FlatBatch, compute: Compute) -> _Piece:
    logits = compute(piece)
    first = int(piece.starts[0]) + 1
    targets = upload(asker.prompt[first : first + len(logits)], logits.device)
    found = logprobs_of(logits, targets, np.full(len(logits), asker.depth, np.int32))
    assert found is not None
    return _Piece(asker.sequence, first, found)


def _piece(flat: FlatBatch, row: int, offset: int, count: int) -> FlatBatch:
    """Some tokens of one row as a batch of its own, whose every token is sampled."""
    piece = part(flat, row, offset, count)
    return replace(
        piece,
        sampled_tokens=np.arange(count),
        sampled_slots=int32([0] * count),
        sampled_positions=piece.positions + 1,
    )
