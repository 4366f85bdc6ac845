"""The operations of an instance's ranks as programs have them: as calls."""

from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import torch

from daemon.engine.cpu.team import Call
from daemon.engine.layers.ranks import RankPart, Ranks


@runtime_checkable
class RanksInCalls(Ranks, Protocol):
    """Ranks whose operations may stand in programs."""

    def sum_call(self, states: torch.Tensor) -> Call:
        """The call that sums dense float32 `states` in place."""

    def gather_call(self, rows: torch.Tensor, widths: Sequence[int], whole: torch.Tensor) -> Call:
        """The call that gathers dense `rows` into dense `whole`."""

    def check(self) -> None:
        """Raise RankError where an operation since the last check went wrong."""


def ranks_of(part: RankPart) -> RanksInCalls:
    """The ranks of which a part of a program's decoder is one's."""
    return cast(RanksInCalls, part.ranks)
