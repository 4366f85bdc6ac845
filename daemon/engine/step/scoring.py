"""Log-probabilities of prompts' own tokens, for sequences whose requests ask for them.

The logits at each of a prompt's tokens foretell the next one. A step that computes some of such a
prompt keeps these tokens' states, and the head is applied to a few of them at a time: the logits
of a whole prompt would fill a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.upload import upload
from daemon.engine.sampler.logprobs import Scores, logprobs_of
from daemon.protocol.worker import Join, PromptLogprobs
from daemon.wire.columns import Column, Int64

PIECE_TOKENS = 128

Head = Callable[[torch.Tensor], torch.Tensor]
"""Logits [R, vocab] of states [R, width]."""


@dataclass(frozen=True, slots=True)
class _Asker:
    """A slot's sequence whose prompt is scored."""

    sequence: int
    prompt: Int64  # [P] token ids
    depth: int  # the best tokens wanted beside the prompt's own


class PromptScorer:
    """The slots whose prompts are scored, and their scores."""

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

    def spans(self, slots: Column, flat: FlatBatch) -> "list[_Span]":
        """Tokens that foretell tokens of prompts, in a step whose rows [B] hold `slots`."""
        found = list[_Span]()
        if not self._askers:
            return found
        for row, slot in enumerate(slots.tolist()):
            asker = self._askers.get(slot)
            if asker is not None:
                start = int(flat.starts[row])
                # The last token's logits are about the answer.
                count = min(int(flat.counts[row]), len(asker.prompt) - 1 - start)
                if count > 0:
                    found.append(_Span(asker, start, int(flat.row_offsets[row]), count))
        return found


@dataclass(frozen=True, slots=True)
class _Span:
    """Tokens of a batch, one behind the other, that foretell tokens of a prompt."""

    asker: _Asker
    start: int  # the first's index in the prompt
    first: int  # and in the batch
    count: int

    @property
    def tokens(self) -> Int64:
        """Their indices in the batch."""
        return np.arange(self.first, self.first + self.count)


def with_spans(flat: FlatBatch, spans: "list[_Span]") -> FlatBatch:
    """The batch, but the tokens of spans count as sampled, too, in the order of the batch."""
    tokens = np.union1d(flat.sampled_tokens, np.concatenate([span.tokens for span in spans]))
    return replace(
        flat,
        sampled_tokens=tokens,
        sampled_slots=np.zeros(len(tokens), np.int32),
        sampled_positions=flat.positions[tokens] + 1,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some tokens of one prompt, scored."""

    sequence: int
    first: int  # index in the prompt
    found: Scores


@dataclass(frozen=True, slots=True)
class Scored:
    """Logprobs of prompts' tokens that a step computed."""

    pieces: list[_Piece]

    def read(self) -> tuple[PromptLogprobs, ...]:
        """Read the scores on the host, once the device is done."""
        read = ((piece, piece.found.read()) for piece in self.pieces)
        return tuple(
            PromptLogprobs(
                piece.sequence, piece.first, found.chosen, found.top_ids, found.top_values
            )
            for piece, found in read
        )


def score(spans: "list[_Span]", tokens: Int64, states: torch.Tensor, head: Head) -> Scored:
    """Score prompts by the states [R, width] of these tokens [R] of a batch."""
    pieces = []
    for span in spans:
        row = int(np.searchsorted(tokens, span.first))
        for offset in range(0, span.count, PIECE_TOKENS):
            size = min(PIECE_TOKENS, span.count - offset)
            logits = head(states[row + offset : row + offset + size])
            pieces.append(_scored(span.asker, span.start + offset + 1, logits))
    return Scored(pieces)


def _scored(asker: _Asker, first: int, logits: torch.Tensor) -> _Piece:
    """Logits [R, vocab] that foretell a prompt's tokens from `first` on."""
    targets = upload(asker.prompt[first : first + len(logits)], logits.device)
    found = logprobs_of(logits, targets, np.full(len(logits), asker.depth, np.int32))
    assert found is not None
    return _Piece(asker.sequence, first, found)
