"""From logits to tokens, for a whole batch at once.

The order is: repetition, presence and frequency penalty, logit bias, `min_tokens`, what a grammar
allows; temperature, top-k, top-p, min-p; the draw. A row's token depends on its own logits,
parameters, history and (seed, position): never on its slot or on what else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.protocol import Logprobs
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import SlotColumns
from daemon.engine.sampler.draws import draw, uniforms
from daemon.engine.sampler.edits import SlotEdits, end_ids
from daemon.engine.sampler.filters import Filters, draw_filtered
from daemon.engine.sampler.logprobs import logprobs_of
from daemon.request import SamplingParams

Integers = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class SampleResult:
    """R drawn tokens (int64 [R], on the sampler's device), and what was asked about them."""

    tokens: torch.Tensor
    logprobs: Logprobs | None
    broken: npt.NDArray[np.intp]  # rows whose logits leave nothing to draw; their token is 0


class Sampler:
    """Draws the next token of the sequences that hold its slots."""

    def __init__(
        self, vocab_size: int, device: torch.device | str, eos_ids: tuple[int, ...] = ()
    ) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._eos_ids = eos_ids
        self._columns = SlotColumns(vocab_size)
        self._edits: dict[int, SlotEdits] = {}

    def join(
        self, slot: int, sampling: SamplingParams, num_prompt_tokens: int, history: Integers = ()
    ) -> None:
        """A sequence takes a slot; `history` holds prompt and outputs if a penalty needs them."""
        edited = SlotEdits.needed(sampling)
        self._columns.join(slot, sampling, edited)
        if edited:
            ends = end_ids(sampling, self._eos_ids)
            self._edits[slot] = SlotEdits(
                sampling, num_prompt_tokens, history, ends, self._vocab_size, self._device
            )

    def leave(self, slot: int) -> None:
        """Forget the slot's sequence."""
        self._edits.pop(slot, None)

    def sample(
        self,
        logits: torch.Tensor,
        slots: Integers,
        positions: Integers,
        allowed: Allowed | None = None,
    ) -> SampleResult:
        """Draw one token of each row.

        `logits` [R, vocab_size] of any float type, left unchanged; `positions` [R] are the absolute
        indices, prompt included, of the tokens drawn; `allowed` binds some of the rows. Rows
        whose logits are NaN, infinite, or leave no token to draw are `broken`; the others are not
        touched by them.
        """
        return self._sample(
            logits,
            np.asarray(slots, dtype=np.int64),
            np.asarray(positions, dtype=np.int64),
            allowed,
        )

    def _sample(
        self,
        logits: torch.Tensor,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        allowed: Allowed | None,
    ) -> SampleResult:
        params = self._columns.rows(slots)
        edited = np.flatnonzero(params["edited"])
        work = self._edited(logits, edited, slots, positions, allowed)
        best, tokens = work.max(-1)
        broken = np.flatnonzero(~best.isfinite().cpu().numpy())
        drawing = np.flatnonzero(params["temperature"] > 0)
        if len(broken):
            tokens[self._tensor(broken)] = 0
            drawing = np.setdiff1d(drawing, broken)
        if len(drawing):
            uniform = uniforms(params["seed"][drawing], positions[drawing])
            index = self._tensor(drawing)
            tokens[index] = self._draw(work, best, index, params[drawing], uniform)
        for row in edited:
            self._edits[int(slots[row])].append(tokens[row])
        return SampleResult(tokens, logprobs_of(logits, tokens, params["logprobs"]), broken)

    def _edited(
        self,
        logits: torch.Tensor,
        rows: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        allowed: Allowed | None,
    ) -> torch.Tensor:
        """The logits with penalties, biases and masks; a copy if there are any."""
        if not len(rows) and allowed is None:
            return logits
        work = logits.to(torch.float32, copy=True)
        for row in rows:
            self._edits[int(slots[row])].apply(work[row], int(positions[row]))
        if allowed is not None:
            allowed.forbid(work)
        return work

    def _draw(
        self,
        logits: torch.Tensor,
        best: torch.Tensor,
        index: torch.Tensor,
        params: npt.NDArray[np.void],
        uniform: npt.NDArray[np.float64],
    ) -> torch.Tensor:
        """Tokens int64 [D] of the rows `index` [D], whose temperature is not 0."""
        if len(index) < len(logits):
            logits, best = logits[index], best[index]
        temperature = self._tensor(params["temperature"]).unsqueeze(1)
        scaled = (logits.float() - best.float().unsqueeze(1)).div_(temperature)
        numbers = self._tensor(uniform)
        cut = (params["top_k"] > 0) | (params["top_p"] < 1) | (params["min_p"] > 0)
        filters = Filters(*(self._tensor(params[name]) for name in ("top_k", "top_p", "min_p")))
        if cut.all():
            return draw_filtered(scaled, filters, numbers)
        if not cut.any():
            return draw(scaled.exp_(), numbers)
        tokens = torch.empty(len(index), dtype=torch.int64, device=self._device)
        some, rest = self._tensor(np.flatnonzero(cut)), self._tensor(np.flatnonzero(~cut))
        tokens[some] = draw_filtered(scaled[some], filters.rows(some), numbers[some])
        tokens[rest] = draw(scaled[rest].exp_(), numbers[rest])
        return tokens

    def _tensor(self, column: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(column.copy()).to(self._device)
