"""From logits to tokens, for a whole batch at once.

The order is: repetition, presence and frequency penalty, logit bias, `min_tokens`, what a grammar
allows; temperature, top-k, top-p, min-p; the draw. A row's token depends on its own logits,
parameters, history and (seed, position): never on its slot or on what else is in the batch.

Nothing here waits for a GPU: sampling is queued behind the logits, and read when it is done.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.batch.download import download
from daemon.engine.batch.upload import upload
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.columns import Params, SlotColumns
from daemon.engine.sampler.drafted import Drafted
from daemon.engine.sampler.edits import edits_logits, end_ids
from daemon.engine.sampler.logprobs import logprobs_of
from daemon.engine.sampler.on_host import HostSamplerOps
from daemon.engine.sampler.ops import Edited, SamplerOps, TorchSamplerOps
from daemon.engine.sampler.rules import DrawRules
from daemon.engine.sampler.sampled import Sampled
from daemon.state.request import SamplingParams

Integers = Sequence[int] | npt.NDArray[np.integer[Any]]


class Sampler:
    """Samples the next token of the sequences that hold its slots.

    `ops`: the device's operations; if not given, torch on the host.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        eos_ids: tuple[int, ...] = (),
        ops: SamplerOps | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._eos_ids = eos_ids
        self._columns = SlotColumns(vocab_size)
        host = TorchSamplerOps if self.device.type == "cpu" else HostSamplerOps
        self._ops = ops or host(vocab_size)

    def join(
        self, slot: int, sampling: SamplingParams, num_prompt_tokens: int, history: Integers = ()
    ) -> None:
        """A sequence takes a slot; `history` holds prompt and outputs if a penalty needs them."""
        edited = edits_logits(sampling)
        self._columns.join(slot, sampling, edited)
        if edited:
            ends = end_ids(sampling, self._eos_ids)
            known = np.asarray(history, dtype=np.int64)
            self._ops.join(slot, sampling, num_prompt_tokens, known, ends)

    def leave(self, slot: int) -> None:
        """Forget the slot's sequence."""
        self._ops.leave(slot)

    def rules(self, slots: Integers, positions: Integers, times: int) -> DrawRules | None:
        """Rules by which these slots' sequences sample `times` tokens each, from `positions` [R]
        on; None where log-probabilities are asked for, or the device samples step by step.

        Raises ValueError if a penalty's history is not whole.
        """
        seats, places = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
        params = self._columns.rows(seats)
        if (params["logprobs"] >= 0).any():
            return None
        return self._ops.rules(params, seats, places, times)

    def took(self, slots: Integers, times: int) -> None:
        """Account for `times` tokens sampled per slot by a multi-step program."""
        seats = np.asarray(slots, np.int64)
        self._ops.took(seats[self._columns.rows(seats)["edited"]], times)

    def sample(
        self,
        logits: torch.Tensor,
        slots: Integers,
        positions: Integers,
        allowed: Allowed | None = None,
        drafted: Drafted | None = None,
    ) -> Sampled:
        """Sample a token of each row.

        `logits` [R, vocab_size] of any float type, left unchanged; `positions` [R] are the absolute
        indices, prompt included, of the tokens sampled; `allowed` masks some of the rows. Rows
        whose logits are NaN, infinite, or leave no token are `broken`; the others are not
        touched by them. With `drafted` only the draws that are `kept` count. Raises ValueError if
        a penalty's history is not whole.
        """
        seats, places = np.asarray(slots, np.int64), np.asarray(positions, np.int64)
        params = self._columns.rows(seats)
        rows = params["edited"].nonzero()[0]
        changed = rows if allowed is None else np.union1d(rows, allowed.rows)
        if not len(changed):
            chosen = self._ops.choose(logits, params, places)
        else:
            expected = None if drafted is None else drafted.expected[rows]
            at = np.searchsorted(changed, rows)
            edited = Edited(at, rows, seats[rows], places[rows], expected)
            chosen = self._choose(logits, params, places, changed, edited, allowed)
        kept = None
        if drafted is not None:  # here the host waits
            tokens, broken = chosen.cpu().numpy()
            kept = drafted.kept(tokens, broken.astype(np.bool_))
        if len(changed):
            self._ops.append(chosen[0], edited if kept is None else edited.of(kept))
        scores = logprobs_of(logits, chosen[0], params["logprobs"])
        return Sampled(chosen, download(chosen), scores, kept)

    def _choose(
        self,
        logits: torch.Tensor,
        params: Params,
        positions: npt.NDArray[np.int64],
        changed: npt.NDArray[np.int64],
        edited: Edited,
        allowed: Allowed | None,
    ) -> torch.Tensor:
        """The token of each row, and whether it is broken; `changed` rows are sampled from a copy.

        The others are drawn from the logits themselves, as if they were alone: sums of numbers of
        another type might be taken in another order.
        """
        index = upload(changed, logits.device)
        copy = logits.index_select(0, index).float()
        if len(edited.rows):
            self._ops.edit(copy, logits, edited)
        if allowed is not None:
            places = np.searchsorted(changed, allowed.rows)
            self._ops.forbid(copy, Allowed(places, allowed.masks))
        chosen = self._ops.choose(copy, params[changed], positions[changed])
        if len(changed) == len(logits):
            return chosen
        others = params.copy()
        others["inverse"][changed] = 0.0
        return self._ops.choose(logits, others, positions).index_copy_(1, index, chosen)
