"""Operations of the ranks of an instance together, and the layers of which each has a part.

A layer split by rows gives a part of its output, and the next one, split by columns, takes that
part: their results are added up over all ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import silu


class RankError(RuntimeError):
    """A rank cannot go on with the others: one is late, has ended or does something else."""


class Ranks(Protocol):
    """The ranks of an instance as one of them sees them. All call the same methods in the same
    order, or each gets a RankError within its deadline.
    """

    rank: int
    world_size: int
    deadline_s: float  # how long a rank may be late

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

    def tell(self, rows: torch.Tensor) -> None:
        """Give int64 `rows` [R, width] to all other ranks; the first rank does."""

    def hear(self, num_rows: int, width: int) -> torch.Tensor:
        """The rows that the first rank told next, int64 [R, width]."""

    def stepped(self, elapsed_s: float) -> None:
        """A step is done, which took so long with all waiting in it for others."""

    def close(self) -> None:
        """Leave: whoever waits for this rank gets an error at once."""


class TellsByGather:
    """Ranks that are told rows as they gather them: all meet."""

    rank: int
    world_size: int

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """See `Ranks`."""
        raise NotImplementedError

    def tell(self, rows: torch.Tensor) -> None:
        """See `Ranks`."""
        self.gather(rows, self._widths(rows.shape[1]), reads=False)

    def hear(self, num_rows: int, width: int) -> torch.Tensor:
        """See `Ranks`."""
        return self.gather(self._nothing(num_rows), self._widths(width))

    def stepped(self, elapsed_s: float) -> None:
        """Nothing: ranks that share layers wait for each other many times in a step."""

    def _nothing(self, num_rows: int) -> torch.Tensor:
        return torch.empty((num_rows, 0), dtype=torch.int64)

    def _widths(self, width: int) -> list[int]:
        return [width, *[0] * (self.world_size - 1)]


class RankPart(nn.Module):
    """A layer around this rank's part of it, `inner`."""

    def __init__(self, inner: Any, ranks: Ranks) -> None:
        super().__init__()
        self.inner = inner
        self.ranks = ranks

    def over(self, inner: Any) -> "RankPart":
        """The same around another part: one that is prepared for this device."""
        return type(self)(inner, self.ranks)

    def prepared(self, prepare: Callable[[Any], Any]) -> "RankPart":
        """The same around the part that `prepare` makes of this one."""
        return self.over(prepare(self.inner))

    @property
    def weight(self) -> torch.Tensor:
        """This rank's part, for modelling code that asks for its type."""
        found: torch.Tensor = self.inner.weight
        return found


class SummedPart(RankPart):
    """Takes a part of the states, or has a part of an inner width; the sum is the output."""

    def forward(self, *states: torch.Tensor) -> torch.Tensor:
        """The whole output."""
        return self.ranks.sum(self.inner(*states))


class SharedNorm(RankPart):
    """Has a part of one group of a gated RMS norm, whose squares are added up over all ranks; some
    may have whole groups.
    """

    def __init__(
        self, inner: Any, ranks: Ranks, group: int, num_groups: int, group_size: int
    ) -> None:
        """`group`: this rank's, among those of all ranks."""
        super().__init__(inner, ranks)
        self.group, self.num_groups, self.group_size = group, num_groups, group_size

    def forward(self, states: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """`states` [..., width] times silu of `gates`, normed."""
        opened = states.float() * silu(gates.float())
        squares = opened.new_zeros((*opened.shape[:-1], self.num_groups))
        squares[..., self.group] = opened.square().sum(-1)
        mean = self.ranks.sum(squares)[..., self.group, None] / self.group_size
        normed = opened * torch.rsqrt(mean + self.inner.variance_epsilon)
        return (self.inner.weight * normed).to(gates.dtype)


class GatheredHead(RankPart):
    """Has some rows of a head; all ranks' logits stand side by side."""

    def __init__(self, inner: Any, ranks: Ranks, widths: Sequence[int]) -> None:
        """`widths`: the rows of each rank."""
        super().__init__(inner, ranks)
        self.widths = tuple(widths)

    def over(self, inner: Any) -> "GatheredHead":
        """See `RankPart`."""
        return GatheredHead(inner, self.ranks, self.widths)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of `states` [..., width]."""
        logits = self.inner(states)
        whole = self.ranks.gather(logits.flatten(0, -2), self.widths)
        return whole.view(*states.shape[:-1], sum(self.widths))


class SplitEmbedding(RankPart):
    """Has the rows of some tokens, from the `first` on; others are another rank's."""

    def __init__(self, inner: Any, ranks: Ranks, first: int, num_rows: int) -> None:
        super().__init__(inner, ranks)
        self.first, self.num_rows = first, num_rows

    def over(self, inner: Any) -> "SplitEmbedding":
        """See `RankPart`."""
        return SplitEmbedding(inner, self.ranks, self.first, self.num_rows)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """States [..., width] of `tokens` int64 [...]."""
        return own_rows(self, tokens, self.inner)


def own_rows(split: SplitEmbedding, tokens: torch.Tensor, look_up: Any) -> torch.Tensor:
    """Rows by `look_up` of this rank's tokens, 0 of others, added up over all ranks."""
    own = tokens - split.first
    elsewhere = (own < 0) | (own >= split.num_rows)
    rows = look_up(own.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0)
    return split.ranks.sum(rows)


def prepared_part(layer: Any, prepare: Callable[[Any], Any]) -> Any:
    """A layer as it is computed here, or this rank's part of it."""
    return layer.prepared(prepare) if isinstance(layer, RankPart) else prepare(layer)


def bare(layer: Any) -> Any:
    """A layer, or this rank's part of it."""
    return layer.inner if isinstance(layer, RankPart) else layer


def from_all(ranks: Ranks, number: int) -> list[int]:
    """A number of each rank, on all of them."""
    own = torch.tensor([[number]], dtype=torch.int64)
    found: list[int] = ranks.gather(own, [1] * ranks.world_size)[0].tolist()
    return found


def on_all(ranks: Ranks | None, holds: bool) -> bool:
    """Whether something holds on every rank, each of which asks; of the only one where it is None.

    What decides which operations a rank does with the others is asked so: each sees a part of the
    model, and parts may be unlike.
    """
    return holds if ranks is None else all(from_all(ranks, holds))


def on_any(ranks: Ranks | None, holds: bool) -> bool:
    """Whether something holds on a rank, each of which asks; see `on_all`."""
    return holds if ranks is None else any(from_all(ranks, holds))
