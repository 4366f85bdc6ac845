"""Bitmasks over rows of logits: the tokens that a grammar allows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_BITS = 32


@dataclass(frozen=True, slots=True)
class Allowed:
    """The rows [G] of a batch that have a grammar, and the tokens that each may sample.

    `masks` int32 [G, W]: bit t % 32 of word t // 32 allows token t; 32 * W is at least the
    vocabulary's size, and each row allows some token of it.
    """

    rows: npt.NDArray[np.int64]
    masks: npt.NDArray[np.int32]

    def forbid(self, logits: torch.Tensor) -> None:
        """Set what is not allowed to minus infinity, in float logits [R, V] on a CPU, in place."""
        words = torch.from_numpy(self.masks).unsqueeze(-1)
        shifts = torch.arange(_BITS, dtype=torch.int32)
        forbidden = ((words >> shifts) & 1).logical_not().flatten(1)[:, : logits.shape[1]]
        if len(self.rows) == len(logits):
            logits.masked_fill_(forbidden, -torch.inf)
        else:
            index = torch.from_numpy(self.rows)
            logits[index] = logits[index].masked_fill_(forbidden, -torch.inf)
