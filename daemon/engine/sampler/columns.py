"""The sampling parameters of every slot, as columns that a batch picks its rows from."""

import numpy as np
import numpy.typing as npt

from daemon.engine.sampler.draws import UINT64_MASK
from daemon.request import SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: the division would only overflow."""

_FIELDS = np.dtype(
    [
        ("temperature", "f4"),
        ("top_k", "i8"),
        ("top_p", "f4"),
        ("min_p", "f4"),
        ("seed", "u8"),
        ("logprobs", "i4"),
        ("edited", "?"),
    ]
)


class SlotColumns:
    """One record a slot; grows with the highest slot seen."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._table: npt.NDArray[np.void] = np.zeros(16, _FIELDS)

    def join(self, slot: int, sampling: SamplingParams, edited: bool) -> None:
        """Set a slot's record; `edited` says that its logits change before the draw."""
        if slot >= len(self._table):
            grown = np.zeros(max(slot + 1, 2 * len(self._table)), _FIELDS)
            grown[: len(self._table)] = self._table
            self._table = grown
        greedy = sampling.temperature < GREEDY_BELOW
        # A top_k of the whole vocabulary filters nothing, and top_k <= 0 is off.
        top_k = sampling.top_k if 0 < sampling.top_k < self._vocab_size else 0
        self._table[slot] = (
            0.0 if greedy else sampling.temperature,
            top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.seed & UINT64_MASK,
            sampling.logprobs,
            edited,
        )

    def rows(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """The records of a batch's rows [R]."""
        return self._table[slots]
