"""Quantised layers of safetensors checkpoints, each brought into blocks when it is taken."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from daemon.engine.quantised.repack import (
    Numbers,
    awq_rows,
    blocks_of,
    bytes_in,
    fp4_blocks,
    group_order,
    mxfp4_blocks,
    nibbles,
    opened,
    spread,
    transposed,
)
from daemon.engine.quantised.stored import LoadMeter, Stored, read_rows
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS
from daemon.models.quantised_layers import QuantisedLayer
from daemon.models.rank_shares import Range
from daemon.models.shape import ModelError

_ONES = {"int4": 0x11111111, "int8": 0x01010101}
_MIDDLE = {"int4": 8, "int8": 128, "fp8": 0}


def packed_weights(
    layers: Mapping[str, QuantisedLayer],
    stored: Mapping[str, Stored],
    meter: LoadMeter,
    device: torch.device,
) -> dict[str, Callable[[], QuantisedWeight]]:
    """Factories of weights, by name: each reads its layer's tensors and no others.

    `stored` are all tensors of the open files. Making one raises ModelError where its tensors do
    not hold what they should.
    """
    return {
        name: partial(_Reader(layer, stored, meter).weight, device)
        for name, layer in layers.items()
    }


class _Reader:
    """One layer."""

    def __init__(
        self, layer: QuantisedLayer, stored: Mapping[str, Stored], meter: LoadMeter
    ) -> None:
        self._layer = layer
        self._stored = stored
        self._meter = meter

    def weight(self, device: torch.device) -> QuantisedWeight:
        """The weight on a device. Raises ModelError."""
        layer = self._layer
        if layer.scheme.layout == "experts":
            blocks, scales = self._take_place("blocks"), self._take_place("scales")
            return QuantisedWeight(
                FORMATS[layer.format], mxfp4_blocks(blocks, scales).to(device), layer.columns
            )
        if layer.scheme.numbers == "fp4":
            return QuantisedWeight(FORMATS[layer.format], self._fp4().to(device), layer.columns)
        make = {"awq": self._awq, "gptq": self._gptq, "packed": self._packed, "plain": self._plain}
        order = self._order()
        numbers, scales, zeros = make[layer.scheme.layout]()
        in_pairs = layer.scheme.numbers == "int4" and layer.scheme.layout != "awq"
        if order is not None:
            numbers, in_pairs = _ordered(numbers, order, in_pairs), False
        form = FORMATS[layer.format]
        starts = torch.arange(0, layer.columns, form.block_len) // layer.group
        group_rows = min(layer.scheme.group_rows, layer.rows)
        scales, zeros = (spread(it, layer.rows, group_rows, starts) for it in (scales, zeros))
        data = blocks_of(form, numbers, scales, zeros, in_pairs=in_pairs)
        placed = None if order is None else order.to(device)
        return QuantisedWeight(form, data.to(device), layer.columns, placed)

    def _fp4(self) -> torch.Tensor:
        packed = self._layer.scheme.layout == "packed"
        pairs = self._take("weight_packed" if packed else "weight")
        scales = self._take("weight_scale").view(torch.uint8)
        whole = self._take("weight_global_scale" if packed else "weight_scale_2").item()
        factor, divisor = (1.0, whole) if packed else (whole, 1.0)
        return fp4_blocks(FORMATS[self._layer.format], pairs, scales, factor, divisor)

    def _awq(self) -> tuple[Numbers, torch.Tensor, torch.Tensor]:
        words = self._take("qweight")

        def numbers(first: int, last: int) -> torch.Tensor:
            return awq_rows(words[:, first // 8 : last // 8].contiguous())

        return numbers, self._take("scales").T, awq_rows(self._take("qzeros"))

    def _gptq(self) -> tuple[Numbers, torch.Tensor, torch.Tensor]:
        """The first layout stores zero points less 1, and its tools take 1 from a whole word of
        them: what a zero borrows from its neighbour comes back where 1 is added to the word.
        """
        words, zero_words = transposed(self._take("qweight")), self._take("qzeros")
        numbers = self._layer.scheme.numbers
        if self._layer.scheme.lowered_zeros:
            zero_words = zero_words + _ONES[numbers]
        in_words = nibbles if numbers == "int4" else bytes_in
        zeros = in_words(zero_words)[:, : self._layer.rows].T
        return lambda a, b: bytes_in(words[a:b]), self._take("scales").T, zeros

    def _packed(self) -> tuple[Numbers, torch.Tensor, torch.Tensor]:
        layer, words = self._layer, self._take("weight_packed")
        shape = self._take("weight_shape").tolist()
        if shape != [layer.rows, layer.columns]:
            raise self._error(f"its shape is {shape}, and its numbers are not so many")
        scales = self._grid("weight_scale")
        zeros = self._zeros(scales)
        return lambda first, last: bytes_in(words[first:last]), scales, zeros

    def _plain(self) -> tuple[Numbers, torch.Tensor, torch.Tensor]:
        numbers = self._take("weight").view(torch.uint8)
        inverse = "weight_scale_inv" in self._layer.tensors
        scales = self._grid("weight_scale_inv" if inverse else "weight_scale")
        flip = _MIDDLE[self._layer.scheme.numbers]  # of int8 the sign, as 128 more
        return lambda first, last: numbers[first:last] ^ flip, scales, self._zeros(scales)

    def _zeros(self, scales: torch.Tensor) -> torch.Tensor:
        """Zero points in a grid like that of scales, where numbers begin at zero."""
        numbers = self._layer.scheme.numbers
        if "weight_zero_point" not in self._layer.tensors:
            return torch.full_like(scales, _MIDDLE[numbers], dtype=torch.float32)
        zeros = self._take("weight_zero_point")
        if zeros.dtype == torch.int32:
            in_words = nibbles if numbers == "int4" else bytes_in
            return in_words(zeros.T).T[: len(scales)]
        return zeros.float().view(scales.shape) + _MIDDLE[numbers]

    def _order(self) -> torch.Tensor | None:
        for what in ("g_idx", "weight_g_idx"):
            if what in self._layer.tensors:
                try:
                    return group_order(self._take(what), self._layer.group)
                except ValueError as error:
                    raise self._error(str(error)) from None
        return None

    def _grid(self, what: str) -> torch.Tensor:
        """Scales [down, across]."""
        scales = self._take(what)
        return scales if scales.ndim == 2 else scales.view(-1, 1)

    def _take(self, what: str) -> torch.Tensor:
        return read_rows(self._stored[self._layer.tensors[what]], self._meter)

    def _take_place(self, what: str) -> torch.Tensor:
        """The layer's own part of a tensor of several layers."""
        stored = self._stored[self._layer.tensors[what]]
        place = self._layer.place
        return read_rows(stored, self._meter, Range(place, place + 1))[0]

    def _error(self, said: str) -> ModelError:
        return ModelError(f"{self._layer.name}: {said}")


def _ordered(numbers: Numbers, order: torch.Tensor, in_pairs: bool) -> Numbers:
    columns = order.numpy()

    def taken(first: int, last: int) -> torch.Tensor:
        found = numbers(first, last)
        found = opened(found) if in_pairs else found
        # numpy takes columns several times as fast as torch does.
        return torch.from_numpy(found.numpy().take(columns, 1))

    return taken
