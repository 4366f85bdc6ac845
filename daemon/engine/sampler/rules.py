"""How rows sample several tokens in a multi-step program, which reads no logits in between."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daemon.engine.sampler.noise import UInts
from daemon.engine.sampler.sample_columns import EDIT_COLUMNS, RULE_COLUMNS
from daemon.wire.columns import Int64

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DrawRules:
    """The rules of R rows for some tokens each; the columns are `sample_columns`."""

    rules: Float64  # [R, RULE_COLUMNS]
    keys: UInts  # [times, R] of `noise`
    edits: Int64  # [R, EDIT_COLUMNS], with addresses that stay while no slot is left

    @property
    def times(self) -> int:
        """The number of tokens that each row samples."""
        return len(self.keys)

    @classmethod
    def greedy(cls, num_rows: int, times: int) -> "DrawRules":
        """The best logit each time."""
        rules, keys = np.zeros((num_rows, RULE_COLUMNS)), np.zeros((times, num_rows), np.uint64)
        return cls(rules, keys, np.zeros((num_rows, EDIT_COLUMNS), np.int64))
