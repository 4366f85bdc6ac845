"""The sampler's work on a GPU: everything is queued, nothing waited for."""

import numpy as np
import torch

from daemon.engine.batch.upload import upload, upload_all
from daemon.engine.cuda.triton.edit import SlotTables, edit_logits, forbid
from daemon.engine.cuda.triton.sample import sample
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import Params, filtered
from daemon.engine.sampler.edits import (
    check_known,
    held_tokens,
    known_bias,
    known_ids,
)
from daemon.engine.sampler.noise import keys
from daemon.engine.sampler.ops import Edited, History, Integers
from daemon.state.request import SamplingParams

_FIRST_ROOM = 64
_ALWAYS = np.iinfo(np.int32).max

_PENALTIES = ("repetition", "presence", "frequency")
_HELD = np.dtype(
    [
        ("counts", "?"),  # whether a penalty counts the tokens known
        ("known", "i8"),  # tokens, 0 where no penalty counts them
        ("prompt", "i8"),  # tokens
        *((name, "f4") for name in _PENALTIES),
    ]
)
"""A slot's parameters on the host."""


class CudaSamplerOps:
    """See `daemon.engine.sampler.ops.SamplerOps`. Histories, biases and ends stay on the device."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots = np.zeros(_FIRST_ROOM, _HELD)
        self._tables = _tables(_FIRST_ROOM, _FIRST_ROOM, _FIRST_ROOM, device)

    def join(
        self,
        slot: int,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        history: History,
        ends: tuple[int, ...],
    ) -> None:
        """See `SamplerOps`."""
        counts = sampling.counts_tokens
        known = history if counts else history[:0]
        bias = known_bias(sampling, self._vocab_size)
        held = held_tokens(sampling)
        end_ids = known_ids(ends, self._vocab_size) if held else []
        self._grow(slot + 1, len(known) + 1, len(bias) + len(end_ids))
        self._slots[slot] = (
            counts,
            len(known),
            num_prompt_tokens,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        )
        room = self._tables.ids.shape[1]
        ids = np.full(room, -1, np.int32)
        amounts = np.full(room, -np.inf, np.float32)
        untils = np.full(room, num_prompt_tokens + held, np.int32)
        ids[: len(bias) + len(end_ids)] = [*bias, *end_ids]
        amounts[: len(bias)] = list(bias.values())
        untils[: len(bias)] = _ALWAYS
        columns = upload_all([ids, amounts, untils, known.astype(np.int32)], self._device)
        for table, column in zip(
            (self._tables.ids, self._tables.amounts, self._tables.untils), columns, strict=False
        ):
            table[slot].copy_(column)
        self._tables.history[slot, : len(known)].copy_(columns[3])

    def leave(self, slot: int) -> None:
        """See `SamplerOps`: the next sequence of the slot overwrites this one."""

    def edit(self, copy: torch.Tensor, logits: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        held = self._slots[edited.slots]
        counting = held["counts"]
        for position, known in zip(
            edited.positions[counting], held["known"][counting], strict=True
        ):
            check_known(int(position), int(known))
        columns = [edited.places, edited.rows, edited.slots, edited.positions]
        columns += [held[name] for name in ("known", "prompt", *_PENALTIES)]
        table = upload(np.stack(columns, 1).astype(np.float64), self._device)
        edit_logits(copy, logits, self._tables, table)

    def forbid(self, copy: torch.Tensor, allowed: Allowed) -> None:
        """See `SamplerOps`."""
        rows, masks = upload_all([allowed.rows.astype(np.int64), allowed.masks], self._device)
        forbid(copy, rows, masks)

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `SamplerOps`."""
        table = np.empty((len(params), 5))
        table[:, 0] = params["inverse"]
        table[:, 1] = params["top_k"]
        table[:, 2] = params["top_p"]
        # As torch has it on a CPU, where the filters' own logarithm is taken. 0 - 0 is not -0.
        table[:, 3] = 0.0 - torch.from_numpy(params["min_p"].copy()).log().numpy()
        table.view(np.uint64)[:, 4] = keys(params["seed"], positions)
        drawing = params["inverse"] > 0
        filtering = bool((drawing & filtered(params)).any())
        rows = upload(table, self._device)
        return sample(logits, rows, bool(drawing.any()), filtering)

    def append(self, tokens: torch.Tensor, edited: Edited) -> None:
        """See `SamplerOps`."""
        counting = self._slots["counts"][edited.slots]
        rows, slots = edited.rows[counting], edited.slots[counting]
        if not len(rows):
            return
        known = self._slots["known"][slots]
        self._grow(0, int(known.max()) + 1, 0)
        history = self._tables.history
        cells, drawn = upload_all([slots * history.shape[1] + known, rows], self._device)
        history.view(-1).index_copy_(0, cells, tokens.index_select(0, drawn).int())
        self._slots["known"][slots] = known + 1

    def rules(self, params: Params, slots: Integers, positions: Integers, times: int) -> None:
        """See `SamplerOps`: a step begins before the last one's tokens are read."""

    def took(self, slots: Integers, times: int) -> None:
        """See `SamplerOps`."""

    def _grow(self, num_slots: int, length: int, nudges: int) -> None:
        """Make room for slots, known tokens and nudges, at least twice what there was if any."""
        old = self._tables
        wanted = zip(
            (num_slots, length, nudges), (*old.history.shape, old.ids.shape[1]), strict=True
        )
        slots, tokens, width = (has if has >= need else max(need, 2 * has) for need, has in wanted)
        if (slots, tokens, width) == (*old.history.shape, old.ids.shape[1]):
            return
        held = np.zeros(slots, _HELD)
        held[: len(self._slots)] = self._slots
        self._slots = held
        self._tables = _tables(slots, tokens, width, self._device)
        for name in ("history", "ids", "amounts", "untils"):
            before = getattr(old, name)
            getattr(self._tables, name)[: before.shape[0], : before.shape[1]].copy_(before)


def _tables(slots: int, tokens: int, nudges: int, device: torch.device) -> SlotTables:
    return SlotTables(
        history=torch.zeros(slots, tokens, dtype=torch.int32, device=device),
        ids=torch.full((slots, nudges), -1, dtype=torch.int32, device=device),
        amounts=torch.zeros(slots, nudges, dtype=torch.float32, device=device),
        untils=torch.zeros(slots, nudges, dtype=torch.int32, device=device),
    )
