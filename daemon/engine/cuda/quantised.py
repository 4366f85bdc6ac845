"""Products over quantised weights on a GPU, where they stay in their blocks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from daemon.engine.cuda.block_implementations import (
    MAX_BLOCK_ROWS,
    PlainBlocks,
    UnpackedBlocks,
    block_candidates,
    new_panel,
)
from daemon.engine.cuda.candidates import DeviceRoom
from daemon.engine.cuda.experts import grouped
from daemon.engine.cuda.product_implementations import Implementation
from daemon.engine.cuda.products import JoinedProduct, Product
from daemon.engine.cuda.triton.skinny import Scratch
from daemon.engine.cuda.unpacking import can_read, unpack
from daemon.engine.families import EXPERTS, NONE, ByTorch
from daemon.engine.quantised.experts import QuantisedExperts, linear_layers
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight


class BlockProduct(Product):
    """A `Product` whose weight is quantised; states are of type `dtype`."""

    plain: Implementation = PlainBlocks()
    max_rows = MAX_BLOCK_ROWS

    def __init__(
        self,
        weight: QuantisedWeight,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        library: Implementation,
    ) -> None:
        super().__init__(replace(weight, order=None), bias)
        self.default = library
        self._order = weight.order
        self._dtype = dtype

    @property
    def weight(self) -> torch.Tensor:
        """The numbers float32, for modelling code that looks at them itself; a copy."""
        return self.weights[0].numbers(unpack)

    @property
    def weights(self) -> list[QuantisedWeight]:
        """The weight, with the order of its columns."""
        return [replace(self.held, order=self._order)]

    @property
    def kind(self) -> str:
        """See `Product`."""
        return str(self.held.format.name)

    @property
    def size_bytes(self) -> int:
        """See `Product`."""
        return int(self.held.size_bytes)

    def new_states(self, rows: int) -> torch.Tensor:
        """See `Product`; in the order of the weight's columns."""
        data = self.held.data
        return torch.empty((rows, self.in_features), dtype=self._dtype, device=data.device)

    def candidates(self, rows: int, room: DeviceRoom, scratch: Scratch) -> list[Implementation]:
        """See `Product`."""
        return block_candidates(rows, self.held, self.default, room, scratch)

    def can_be_measured(self, by_torch: ByTorch) -> bool:
        """See `Product`: its kernels were found to be trusted before it was made."""
        return True

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` [..., in_features] to [..., out_features]."""
        if self._order is not None:
            states = states.index_select(-1, self._order)
        return super().forward(states)

    __call__ = forward


def products(
    layers: Sequence[QuantisedLinear | QuantisedExperts],
    dtype: torch.dtype,
    by_torch: ByTorch = NONE,
) -> Callable[[QuantisedLinear | QuantisedExperts], Any]:
    """A factory of some layers' products, for states of type `dtype`.

    A layer that kernels cannot read stays as it is. Those of experts are replaced together where
    they are alike, else one by one.
    """
    linears = [linear for layer in layers for linear in linear_layers(layer)]
    weights = [weight for layer in linears for weight in layer.weights if can_read(weight)]
    if not weights:
        return lambda layer: layer
    library = UnpackedBlocks(new_panel(weights, dtype))

    def product(layer: QuantisedLinear | QuantisedExperts) -> Any:
        if isinstance(layer, QuantisedExperts):
            together = None if EXPERTS in by_torch else grouped(layer, by_torch)
            if together is not None:
                return together
            return layer.prepared(product, exact=True)
        if not all(map(can_read, layer.weights)):
            return layer
        rows = [weight.rows for weight in layer.weights]
        biases = [None] * len(rows) if layer.bias is None else layer.bias.split(rows)
        parts = [
            BlockProduct(weight, bias, dtype, library)
            for weight, bias in zip(layer.weights, biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else JoinedProduct(parts)

    return product
