"""Layers of transformers' models over quantised weights: what they compute, plainly and exactly.

They unpack what they need, when they need it, and compute in the type of their states: slow, right
on every device, and the reference of faster products.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight, Unpack
from daemon.models.formats import WeightFormat

PIECE_ELEMENTS = 1 << 24
"""Elements of a weight unpacked at a time: all of a head's would fill what a pool left free."""


RUN = 32
"""Numbers of a state that products with integers round to 8 bits together."""
_MOST = 127.0
_LEAST = 2.0**-100
"""Runs of smaller numbers are rounded to nothing."""


def rounded_states(form: WeightFormat, states: torch.Tensor) -> torch.Tensor:
    """`states` [..., K] as products with this format may take them; K in whole runs."""
    if not form.may_round:
        return states
    return _to_bytes(states) if form.integers else states.bfloat16().to(states.dtype)


def _to_bytes(states: torch.Tensor) -> torch.Tensor:
    """Each number as the nearest of 255 whole multiples of the 127th part of its run's largest."""
    runs = states.float().unflatten(-1, (-1, RUN))
    most = runs.abs().amax(-1, keepdim=True)
    scaled = (runs * (_MOST / most)).round() * (most / _MOST)
    return torch.where(most < _LEAST, 0.0, scaled).flatten(-2).to(states.dtype)


class _Unpacking(nn.Module):
    """A module over stacked quantised weights that shows their numbers to readers."""

    weights: list[QuantisedWeight]
    unpack: Unpack
    in_features: int
    out_features: int

    @property
    def weight(self) -> torch.Tensor:
        """The numbers float32 [N, K], for modelling code that looks at them itself; a copy.

        Before weights are loaded it is empty: some modelling code initialises a new model through
        it.
        """
        if not self.weights:
            return torch.empty(self.out_features, self.in_features, device="meta")
        return torch.cat([weight.numbers(self.unpack) for weight in self.weights])


class QuantisedLinear(_Unpacking):
    """A linear layer whose weight [N, K] is some quantised weights below each other."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: nn.Parameter | None,
        weights: Iterable[QuantisedWeight] = (),
        unpack: Unpack = unpack,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.bias = bias
        self.weights = list(weights)
        self.unpack = unpack
        self.rounds = False  # as faster products may

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., K] to [..., N]."""
        product = torch.cat([self._product(states, piece) for piece in self._pieces()], -1)
        return product if self.bias is None else product + self.bias.to(states.dtype)

    def _product(self, states: torch.Tensor, piece: QuantisedWeight) -> torch.Tensor:
        taken = states if piece.order is None else states[..., piece.order.long()]
        if self.rounds:
            taken = rounded_states(piece.format, taken)
        return linear(taken, self.unpack(piece.format, piece.data).to(states.dtype))

    def _pieces(self) -> Iterator[QuantisedWeight]:
        rows = max(1, PIECE_ELEMENTS // self.in_features)
        for weight in self.weights:
            for first in range(0, weight.rows, rows):
                yield weight.pick(slice(first, first + rows))


class QuantisedEmbedding(_Unpacking):
    """An embedding whose rows are unpacked when they are looked up, and multiplied by `scale`."""

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, scale: float = 1.0) -> None:
        super().__init__()
        self.out_features, self.in_features = num_rows, width
        self.dtype, self.scale = dtype, scale
        self.weights: list[QuantisedWeight] = []
        self.unpack: Unpack = unpack

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """States [..., width] of `tokens` int64 [...]."""
        rows = self.weights[0].pick(tokens.reshape(-1)).numbers(self.unpack).to(self.dtype)
        return scaled(rows, self.scale).view(*tokens.shape, -1)


def scale_of(embedding: nn.Module) -> float:
    """The factor of an embedding's rows in transformers."""
    return float(getattr(embedding, "scalar_embed_scale", 1.0))


def scaled(rows: torch.Tensor, scale: float) -> torch.Tensor:
    """`rows` times `scale`, which is rounded to their type before, as in transformers."""
    return rows if scale == 1.0 else rows * torch.tensor(scale, dtype=rows.dtype)


def quantised_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """All layers of a model over quantised weights, by their names."""
    for name, module in model.named_modules():
        if isinstance(module, QuantisedLinear | QuantisedEmbedding):
            yield name, module


def count_params(model: nn.Module) -> int:
    """Parameters of a model, quantised ones included; what is shared counts once."""
    held = {
        id(weight): weight.rows * weight.columns
        for _, la in quantised_layers(model)
        for weight in la.weights
    }
    return sum(held.values()) + sum(parameter.numel() for parameter in model.parameters())
