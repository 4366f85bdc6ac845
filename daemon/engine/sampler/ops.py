"""A device's operations for the sampler: an interface, and plain torch for a CPU."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.choose_tokens import choose_tokens
from daemon.engine.sampler.columns import Params
from daemon.engine.sampler.edits import SlotEdits
from daemon.engine.sampler.rules import DrawRules
from daemon.state.request import SamplingParams
from daemon.wire.columns import Bools

Integers = npt.NDArray[np.int64]
History = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Edited:
    """E rows of a batch whose logits are edited."""

    places: Integers  # [E] in the copy that is edited
    rows: Integers  # [E] in the batch
    slots: Integers  # [E]
    positions: Integers  # [E] of the tokens to be sampled
    expected: Integers | None = None  # [E]: the token that the slot's next row follows; -1: none

    def of(self, kept: Bools) -> "Edited":
        """The rows whose draws count, by `kept` [R]."""
        left = kept[self.rows]
        columns = self.places[left], self.rows[left], self.slots[left], self.positions[left]
        return Edited(*columns)


class SamplerOps(Protocol):
    """Edits, masks and draws of a device; nothing in it may wait for a GPU."""

    def join(
        self,
        slot: int,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: History,
        ends: tuple[int, ...],
    ) -> None:
        """A sequence whose logits are edited takes a slot; `ends` would end it."""

    def leave(self, slot: int) -> None:
        """Forget the slot's sequence, if its logits are edited."""

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """Change rows of `copy` float32 [C, V] in place, as yet equal to those of `logits` [R, V].

        Raises ValueError if the tokens before a position are not all known.
        """

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """Set what is not allowed in rows of `copy` float32 [C, V] to minus infinity, in place."""

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """Sample a token of each row of `logits` [R, V] for `positions` [R].

        Returns int64 [2, R]: the tokens, and 1 for rows that have none, because their best logit is
        not a finite number (their token is 0).
        """

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """Take the sampled `tokens` int64 [R] into their slots' histories."""

    def rules(
        self, params: Params, slots: Integers, positions: Integers, times: int
    ) -> DrawRules | None:
        """See `Sampler.rules`; None where each token is read before the next."""

    def took(self, slots: Integers, times: int) -> None:
        """Account for `times` tokens sampled, by a multi-step program, per slot that edits."""


class TorchSamplerOps:
    """Operations row by row, reading values: for a CPU without compiled kernels."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.edits: dict[int, SlotEdits] = {}

    def join(
        self,
        slot: int,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: History,
        ends: tuple[int, ...],
    ) -> None:
        """See `SamplerOps`."""
        self.edits[slot] = SlotEdits(sampling, num_prompt_tokens, history, ends, self._vocab_size)

    def leave(self, slot: int) -> None:
        """See `SamplerOps`."""
        self.edits.pop(slot, None)

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        slots, expected = edited.slots.tolist(), edited.expected
        follows = [-1] * len(slots) if expected is None else expected.tolist()
        for place, slot, position, token in zip(
            edited.places.tolist(), slots, edited.positions.tolist(), follows, strict=True
        ):
            self.edits[slot].apply(copy[place], position)
            if token >= 0:  # as if it were sampled, for the next row
                self.edits[slot].append(token)
        for slot, token in zip(slots, follows, strict=True):
            if token >= 0:
                self.edits[slot].take_back()

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """See `SamplerOps`."""
        allowed.forbid(copy)

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `SamplerOps`."""
        return choose_tokens(logits, params, positions)

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        for row, slot in zip(edited.rows.tolist(), edited.slots.tolist(), strict=True):
            self.edits[slot].append(int(tokens[row]))

    def rules(
        self, params: Params, slots: Integers, positions: Integers, times: int
    ) -> DrawRules | None:
        """See `SamplerOps`."""
        return None

    def took(self, slots: Integers, times: int) -> None:
        """See `SamplerOps`."""
