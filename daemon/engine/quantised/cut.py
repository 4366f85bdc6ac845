"""Parts of tensors: some ranges along one side, read without the rest where they lie in files."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from daemon.engine.quantised.stored import CHUNK_BYTES, LoadMeter, Stored, read_rows
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.rank_shares import Range
from daemon.models.shape import ModelError


class Cut(NamedTuple):
    """The part of a tensor that a rank has: some ranges along a side, one after the other."""

    dim: int
    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """How many rows or columns are left."""
        return sum(part.size for part in self.ranges)

    @property
    def rows(self) -> Range | None:
        """The rows where they are neighbours, else None."""
        return self.ranges[0] if self.dim == 0 and len(self.ranges) == 1 else None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part, dense: a view where it can be one."""
        parts = [tensor.narrow(self.dim, part.first, part.size) for part in self.ranges]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)).contiguous()


def cut_weight(take: Callable[[], QuantisedWeight], cut: Cut, name: str) -> QuantisedWeight:
    """A part of a weight in blocks, whose ranges of columns are whole blocks. Raises ModelError."""
    weight = take()
    if cut.dim == 0:
        return replace(weight, data=cut.of(weight.data))
    if weight.order is not None:
        raise ModelError(f"{name} is stored in the order of activations: its columns stay together")
    ranges = tuple(Range(*map(weight.format.row_bytes, part)) for part in cut.ranges)
    return replace(weight, data=Cut(1, ranges).of(weight.data), columns=cut.size)


class CutSlice:
    """The part of a tensor that is not loaded yet; see `daemon.engine.loading.weights.Slice`."""

    def __init__(self, whole: Any, cut: Cut) -> None:
        self._whole = whole
        self._cut = cut

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See `Slice`."""
        return self._cut.of(self._whole[index])


def read_cut(stored: Stored, cut: Cut, meter: LoadMeter) -> torch.Tensor:
    """A part of a stored tensor, read through a buffer of a few rows."""
    row_bytes = max(stored.size_bytes // max(stored.shape[0], 1), 1)
    rows = max(1, CHUNK_BYTES // row_bytes)
    if cut.dim == 0:
        pieces = [read_rows(stored, meter, part) for part in cut.ranges]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    parts = []
    for first in range(0, stored.shape[0], rows):
        some = Range(first, min(first + rows, stored.shape[0]))
        parts.append(cut.of(read_rows(stored, meter, some)))
    return torch.cat(parts)
