"""The sampling parameters of every slot, as columns that a batch picks its rows from."""

import numpy as np
import numpy.typing as npt

from daemon.engine.sampler.noise import UINT64_MASK
from daemon.state.request import SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: the division would only overflow."""

Params = npt.NDArray[np.void]
"""One record a row, of these fields."""

_FIELDS = np.dtype(
    [
        ("inverse", "f4"),  # 1 / temperature; 0: greedy
        ("top_k", "i8"),  # 0: off
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
        self._table: Params = np.zeros(16, _FIELDS)

    def join(self, slot: int, sampling: SamplingParams, edited: bool) -> None:
        """Set a slot's record; `edited` says that its logits change before sampling."""
        if slot >= len(self._table):
            grown = np.zeros(max(slot + 1, 2 * len(self._table)), _FIELDS)
            grown[: len(self._table)] = self._table
            self._table = grown
        greedy = sampling.temperature < GREEDY_BELOW
        # A top_k of the whole vocabulary filters nothing, and top_k <= 0 is off.
        top_k = sampling.top_k if 0 < sampling.top_k < self._vocab_size else 0
        self._table[slot] = (
            0.0 if greedy else 1.0 / sampling.temperature,
            top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.seed & UINT64_MASK,
            sampling.logprobs,
            edited,
        )

    def rows(self, slots: npt.NDArray[np.int64]) -> Params:
        """The records of a batch's rows [R]."""
        return self._table[slots]


def filtered(params: Params) -> npt.NDArray[np.bool_]:
    """The rows [R] with top-k, top-p or min-p."""
    found: npt.NDArray[np.bool_] = (
        (params["top_k"] > 0) | (params["top_p"] < 1) | (params["min_p"] > 0)
    )
    return found
