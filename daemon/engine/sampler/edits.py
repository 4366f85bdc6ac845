"""What changes logits before a draw: penalties, logit bias, and no end before `min_tokens`.

All of it touches few tokens, so it is scattered into a copy of the logits, never a pass over them.
"""

from collections.abc import Iterable

import numpy as np
import torch

from daemon.request import SamplingParams


class SlotEdits:
    """One slot's edits, and its tokens where a penalty counts them."""

    def __init__(
        self,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: Iterable[int],
        end_ids: Iterable[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._sampling = sampling
        self._num_prompt_tokens = num_prompt_tokens
        self._end_ids = _known(end_ids, vocab_size).to(device)
        # Tokens that the model does not have cannot be drawn: a bias on one means nothing.
        bias = {token: value for token, value in sampling.logit_bias if 0 <= token < vocab_size}
        self._bias_ids = torch.tensor(list(bias), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32, device=device)
        # A grammar knows when it may end: `daemon.engine.grammar` sees to `min_tokens` then.
        self._min_tokens = 0 if sampling.grammar else sampling.min_tokens
        self._counts = _counts_tokens(sampling)
        known = np.asarray(history, dtype=np.int64) if self._counts else np.zeros(0)
        self._length = len(known)
        self._tokens = torch.zeros(max(64, 2 * len(known)), dtype=torch.int64, device=device)
        self._tokens[: len(known)] = torch.as_tensor(known)

    @staticmethod
    def needed(sampling: SamplingParams) -> bool:
        """Whether these parameters change logits at all."""
        waits = sampling.min_tokens > 0 and not sampling.grammar
        return _counts_tokens(sampling) or bool(sampling.logit_bias) or waits

    def apply(self, row: torch.Tensor, position: int) -> None:
        """Change one row of logits float32 [V] in place, for the draw of token `position`.

        Raises ValueError if the tokens before `position` are not all known.
        """
        if self._counts:
            if position != self._length:
                raise ValueError(f"the token at {position} follows {self._length} known tokens")
            self._penalise(row)
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if position - self._num_prompt_tokens < self._min_tokens:
            row[self._end_ids] = -torch.inf

    def append(self, token: torch.Tensor) -> None:
        """Take the drawn token (a scalar tensor) into the history."""
        if not self._counts:
            return
        if self._length == len(self._tokens):
            self._tokens = torch.cat([self._tokens, torch.zeros_like(self._tokens)])
        self._tokens[self._length] = token
        self._length += 1

    def _penalise(self, row: torch.Tensor) -> None:
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0:
            # A token that occurs twice writes the same value twice.
            seen = self._tokens[: self._length]
            values = row[seen]
            factor = sampling.repetition_penalty
            row[seen] = torch.where(values > 0, values / factor, values * factor)
        outputs = self._tokens[self._num_prompt_tokens : self._length]
        if sampling.presence_penalty != 0.0:
            row[outputs] = row[outputs] - sampling.presence_penalty
        if sampling.frequency_penalty != 0.0:
            amounts = torch.full((len(outputs),), -sampling.frequency_penalty, device=row.device)
            row.index_add_(0, outputs, amounts)


def _counts_tokens(sampling: SamplingParams) -> bool:
    """Whether a penalty looks at the tokens before."""
    return (
        sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.repetition_penalty != 1.0
    )


def end_ids(sampling: SamplingParams, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that would end a sequence."""
    return sampling.stop_token_ids + (() if sampling.ignore_eos else eos_ids)


def _known(tokens: Iterable[int], vocab_size: int) -> torch.Tensor:
    return torch.tensor([t for t in tokens if 0 <= t < vocab_size], dtype=torch.int64)
