"""Weights of a folder that stay as their files hold them, each made when a layer takes it.

The files are mapped, see `daemon.engine.quantised.mapped`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from daemon.engine.quantised.cut import Cut, CutSlice, cut_weight, read_cut
from daemon.engine.quantised.linear import PIECE_ELEMENTS
from daemon.engine.quantised.mapped import MappedFile, PageReader
from daemon.engine.quantised.stored import LoadMeter, Stored
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import CPU_ONLY, FORMATS, PLAIN
from daemon.models.gguf_index import (
    IndexedTensor,
    file_order,
    linked_files,
    parts_below,
    read_index,
)
from daemon.models.rank_shares import Range
from daemon.models.shape import ModelError

Packed = Mapping[str, Callable[[], QuantisedWeight]]
"""Factories of weights, by name."""

_HELD_AS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


class GgufWeights:
    """The tensors of a folder's GGUF file, in all its parts, where it was made of one: each may be
    taken as it is stored, if it may stay so, or in plain numbers.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        cuts: Mapping[str, Cut] = MappingProxyType({}),
    ) -> None:
        """`cuts`: the parts to take of some tensors. Raises ModelError."""
        self._device = device
        self._cuts = cuts
        index = read_index(folder)
        self._paths = linked_files(folder, index) if index else ()
        tensors = index.tensors if index else ()
        unread = [tensor for tensor in tensors if tensor.format in CPU_ONLY]
        if unread and device.type == "cuda":
            said = (
                f"{unread[0].name} is stored as {unread[0].format}, which llmd reads on a CPU alone"
            )
            raise ModelError(f"{folder}: {said}")
        self.size_bytes = sum(tensor.size_bytes for tensor in tensors)
        # A GPU has more ways to multiply with plain numbers of two bytes.
        blocks_alone = device.type == "cuda" and dtype.itemsize == 2
        self.packed: Packed = {
            tensor.name: partial(self._weight, tensor)
            for tensor in tensors
            if tensor.packed and not (blocks_alone and tensor.format in PLAIN)
        }
        self.plain: dict[str, PlainNumbers | CutSlice | JoinedNumbers] = {
            tensor.name: self._plain(tensor, dtype) for tensor in tensors
        }
        for weight, parts in parts_below(self.plain).items():
            if self.packed.keys() >= set(parts):
                continue  # a layer takes them
            self.packed = {name: it for name, it in self.packed.items() if name not in parts}
            below = [self.plain.pop(part) for part in parts]
            self.plain[weight] = JoinedNumbers(below, dtype)

    def _plain(self, tensor: IndexedTensor, dtype: torch.dtype) -> "PlainNumbers | CutSlice":
        whole = PlainNumbers(partial(self._weight, tensor, whole=True), tensor.shape, dtype)
        return CutSlice(whole, self._cuts[tensor.name]) if tensor.name in self._cuts else whole

    def tells(self, meter: LoadMeter, reader: PageReader | None = None) -> None:
        """Count reads from now on; `reader` reads what stays where it is."""
        self._files = [MappedFile(path, meter, reader) for path in self._paths]

    def _weight(self, tensor: IndexedTensor, whole: bool = False) -> QuantisedWeight:
        cut = None if whole else self._cuts.get(tensor.name)
        moved = tensor.columns or (cut is not None and tensor.rows and cut.dim == 0)
        if cut is not None and moved:  # rows or columns lie in another order
            return cut_weight(partial(self._weight, tensor, whole=True), cut, tensor.name)
        if cut is not None:
            return self._part(tensor, cut)
        form, columns = FORMATS[tensor.format], tensor.shape[-1]
        # What is copied is looked at now.
        later = not (whole or tensor.rows or self._device.type == "cuda")
        data = self._files[tensor.part].part(tensor.start, tensor.size_bytes, later=later)
        row_bytes = form.row_bytes(
            columns if len(tensor.shape) > 1 else 1 if tensor.rows else columns
        )
        rows = data.view(-1, row_bytes)
        if tensor.rows:
            # Which copies rows as a whole; a tensor as an index copies byte by byte.
            rows = rows.index_select(0, torch.from_numpy(file_order(tensor.rows)))
        if len(tensor.shape) == 1:
            rows = rows.reshape(1, -1)
        order = None
        if tensor.columns:  # the model's column for each of the file's
            order = torch.from_numpy(np.argsort(file_order(tensor.columns))).int().to(self._device)
        return QuantisedWeight(form, rows.to(self._device), columns, order)

    def _part(self, tensor: IndexedTensor, cut: Cut) -> QuantisedWeight:
        """A part of a matrix: some rows where they lie, or columns, which are copied."""
        form, (num_rows, columns) = FORMATS[tensor.format], tensor.shape
        row_bytes = form.row_bytes(columns)
        file = self._files[tensor.part]
        if cut.dim == 0:
            later = len(cut.ranges) == 1 and self._device.type != "cuda"
            parts = [
                file.part(tensor.start + part.first * row_bytes, part.size * row_bytes, later=later)
                for part in cut.ranges
            ]
            data = parts[0] if len(parts) == 1 else torch.cat(parts)
            return QuantisedWeight(form, data.view(-1, row_bytes).to(self._device), columns)
        in_bytes = Cut(1, tuple(Range(*map(form.row_bytes, part)) for part in cut.ranges))
        data = file.columns(tensor.start, (num_rows, row_bytes), in_bytes)
        return QuantisedWeight(form, data.to(self._device), cut.size)


class PlainNumbers:
    """A tensor in plain numbers, as `daemon.engine.loading.weights.Slice`."""

    def __init__(
        self, take: Callable[[], QuantisedWeight], shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._take = take
        self._shape = shape
        self._dtype = dtype

    def __getitem__(self, _index: object) -> torch.Tensor:
        """The tensor, as wide as it is stored, or in `dtype`."""
        weight = self._take()
        if (kind := PLAIN.get(weight.format.name)) and weight.order is None:
            return weight.data.view(getattr(torch, kind)).view(self._shape)
        rows = max(1, PIECE_ELEMENTS // weight.columns)
        pieces = [weight.pick(slice(at, at + rows)) for at in range(0, weight.rows, rows)]
        return torch.cat([piece.numbers().to(self._dtype) for piece in pieces]).view(self._shape)


class JoinedNumbers:
    """Tensors in plain numbers below each other, as `daemon.engine.loading.weights.Slice`."""

    def __init__(self, parts: Sequence[Any], dtype: torch.dtype) -> None:
        self._parts = parts
        self._dtype = dtype

    def __getitem__(self, index: object) -> torch.Tensor:
        """The tensor, in `dtype`."""
        return torch.cat([part[index].to(self._dtype) for part in self._parts])


def narrow_weights(
    stored: Mapping[str, Stored],
    dtype: torch.dtype,
    meter: LoadMeter,
    cuts: Mapping[str, Cut],
    reader: PageReader | None = None,
) -> Packed:
    """The tensors in open files that may be weights, in one type of floats, or parts of them.

    What is stored so stays in its file, whole or some of its rows, and is read by `reader`.
    """
    form = FORMATS[_HELD_AS[dtype]]
    files = {
        tensor.file: MappedFile(Path(f"/proc/self/fd/{tensor.file}"), meter, reader)
        for tensor in stored.values()
    }

    def take(tensor: Stored, cut: Cut | None) -> QuantisedWeight:
        if cut is not None and cut.rows is None:
            numbers = read_cut(tensor, cut, meter).to(dtype)
        else:
            rows = Range(0, tensor.shape[0]) if cut is None or cut.rows is None else cut.rows
            row_bytes = tensor.size_bytes // tensor.shape[0]
            place = rows.times(row_bytes)
            later, start = tensor.dtype is dtype, tensor.start + place.first
            own = files[tensor.file].part(start, place.size, later=later)
            numbers = own.view(tensor.dtype).to(dtype).view(-1, tensor.shape[1])
        return QuantisedWeight(form, numbers.view(torch.uint8), numbers.shape[1])

    return {
        name: partial(take, tensor, cuts.get(name))
        for name, tensor in stored.items()
        if len(tensor.shape) == 2 and tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1
    }
