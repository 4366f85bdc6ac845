"""Edits of logits before sampling: penalties, logit bias, and no end before `min_tokens`.

All of it touches few tokens, so it is scattered into a copy of the logits, never a pass over them.
"""

from collections.abc import Iterable

import numpy as np
import torch

from daemon.engine.sampler.sample_columns import (
    BIAS,
    BIAS_IDS,
    ENDS,
    HISTORY,
    KNOWN,
    NUM_BIAS,
    NUM_ENDS,
    POSITION,
    PROMPT,
    REPETITION,
    UNTIL,
)
from daemon.state.request import SamplingParams
from daemon.wire.columns import Int64


class SlotEdits:
    """One slot's edits, and its tokens where a penalty counts them."""

    def __init__(
        self,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: Iterable[int],
        end_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        self._sampling = sampling
        self._num_prompt_tokens = num_prompt_tokens
        self._end_ids = torch.tensor(known_ids(end_ids, vocab_size), dtype=torch.int64)
        bias = known_bias(sampling, vocab_size)
        self._bias_ids = torch.tensor(list(bias), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)
        self._min_tokens = held_tokens(sampling)
        self._counts = sampling.counts_tokens
        known = np.asarray(history, dtype=np.int64) if self._counts else np.zeros(0)
        self._length = len(known)
        self._tokens = torch.zeros(max(64, 2 * len(known)), dtype=torch.int64)
        self._tokens[: len(known)] = torch.as_tensor(known)

    def apply(self, row: torch.Tensor, position: int) -> None:
        """Change a row of logits float32 [V] in place, for the token at `position`.

        Raises ValueError if the tokens before `position` are not all known.
        """
        if self._counts:
            check_known(position, self._length)
            self._penalise(row)
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if position - self._num_prompt_tokens < self._min_tokens:
            row[self._end_ids] = -torch.inf

    def append(self, token: int) -> None:
        """Take the sampled token into the history."""
        if not self._counts:
            return
        self._grow(1)
        self._tokens[self._length] = token
        self._length += 1

    def fill(self, row: Int64, position: int, times: int) -> None:
        """Write into a row of `sample_columns` what `apply` does for `times` tokens from `position`
        on; its addresses stay valid until this is gone or more is appended.

        Raises ValueError as `apply` does.
        """
        penalties = row[REPETITION:].view(np.float64)
        row[HISTORY], penalties[:] = 0, (1.0, 0.0, 0.0)
        if self._counts:
            check_known(position, self._length)
            self._grow(times)
            row[HISTORY] = self._tokens.data_ptr()
            sampling = self._sampling
            penalties[0] = sampling.repetition_penalty
            penalties[1:] = sampling.presence_penalty, sampling.frequency_penalty
        row[KNOWN], row[PROMPT] = self._length, self._num_prompt_tokens
        row[BIAS_IDS], row[BIAS] = self._bias_ids.data_ptr(), self._bias.data_ptr()
        row[NUM_BIAS] = len(self._bias)
        row[ENDS], row[NUM_ENDS] = self._end_ids.data_ptr(), len(self._end_ids)
        row[UNTIL], row[POSITION] = self._num_prompt_tokens + self._min_tokens, position

    def filled(self, times: int) -> None:
        """Note that `times` tokens were sampled and are in the history, as a row of `fill` said."""
        self._length += times * int(self._counts)

    def take_back(self) -> None:
        """Forget the token that was appended last."""
        self._length -= int(self._counts)

    def _grow(self, times: int) -> None:
        """Make room for `times` more tokens."""
        if self._length + times > len(self._tokens):
            self._tokens = torch.cat([self._tokens, torch.zeros_like(self._tokens)])

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
            amounts = torch.full((len(outputs),), -sampling.frequency_penalty)
            row.index_add_(0, outputs, amounts)


def edits_logits(sampling: SamplingParams) -> bool:
    """Whether these parameters change logits at all."""
    return sampling.counts_tokens or bool(sampling.logit_bias) or held_tokens(sampling) > 0


def end_ids(sampling: SamplingParams, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that would end a sequence."""
    return sampling.stop_token_ids + (() if sampling.ignore_eos else eos_ids)


def held_tokens(sampling: SamplingParams) -> int:
    """For how many outputs the ends are held back.

    A grammar knows when it may end: `daemon.engine.step.grammar` sees to `min_tokens` then.
    """
    return 0 if sampling.grammar else sampling.min_tokens


def known_ids(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """The tokens that the model has: no other can be sampled."""
    return [token for token in tokens if 0 <= token < vocab_size]


def known_bias(sampling: SamplingParams, vocab_size: int) -> dict[int, float]:
    """The bias of each token that the model has; the last given counts."""
    return {token: value for token, value in sampling.logit_bias if 0 <= token < vocab_size}


def check_known(position: int, length: int) -> None:
    """Raise ValueError if the `length` known tokens are not all those before `position`."""
    if position != length:
        raise ValueError(f"the token at {position} follows {length} known tokens")
