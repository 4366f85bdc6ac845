"""What the ranks of an instance do together: an interface."""

from collections.abc import Sequence
from typing import Protocol

import torch


class RankError(RuntimeError):
    """A rank cannot go on with the others: one of them is late, has ended or does something else."""


class Ranks(Protocol):
    """The ranks of an instance as one of them sees them. All call the same methods in the same
    order, or each gets a RankError within its deadline.
    """

    rank: int
    world_size: int

    def sum(self, states: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `states`, of one shape and type: the same bits on each rank. It may
        be `states` itself.
        """

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """All ranks' rows [T, width of the rank] side by side, [T, sum of `widths`]; an empty
        tensor on a rank that only gives its own (`reads` is false).
        """

    def close(self) -> None:
        """Leave: whoever waits for this rank gets an error at once."""
