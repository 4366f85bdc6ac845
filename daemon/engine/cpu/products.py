"""Matrix products over quantised weights on a CPU, each in the way that was fastest here.

A few tokens are multiplied by our kernel, which unpacks weights where it needs them. For many, a
panel of a weight is unpacked and torch multiplies: in float32, or in bfloat16 where the processor
multiplies that natively and states may be rounded. How many tokens are many is measured.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import nn

from daemon.engine.cpu import calls
from daemon.engine.cpu.team import Call, Team
from daemon.engine.quantised.linear import QuantisedLinear
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import Format

_PANEL_ELEMENTS = 1 << 21
"""Numbers of a panel: what a core's cache and its neighbours' hold for the product behind it."""
_TRIED_TOKENS = (4, 8, 16, 32, 64, 128)
_TRIED_ROWS = 512
"""Of the weight that is measured: longer ones take as much for each row."""
_ROUNDS = 3
NEVER = 1 << 30


class Many(Protocol):
    """How many tokens are many for a weight, and in which type torch multiplies them."""

    def __call__(self, weight: QuantisedWeight) -> tuple[int, torch.dtype]:
        """The fewest tokens for which panels are faster, and their type."""


class QuantisedProduct(nn.Module):
    """A linear layer over quantised weights, [..., K] to [..., N], on one team of threads."""

    def __init__(self, layer: QuantisedLinear, team: Team, many: Many) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.weights = layer.weights
        self._team = team
        self._ways = [many(weight) for weight in self.weights]
        self._biases = _parts_of(layer.bias, self.weights)

    def many(self) -> list[tuple[int, int]]:
        """From how many tokens on panels are faster, for so many numbers, of each weight."""
        sizes = [weight.rows * weight.columns for weight in self.weights]
        return [(way[0], size) for way, size in zip(self._ways, sizes, strict=True)]

    @property
    def in_calls(self) -> bool:
        """Whether `calls` can compute it: states are taken in the order in which they come."""
        return all(weight.order is None for weight in self.weights)

    def calls(self, states: torch.Tensor, output: torch.Tensor) -> list[Call]:
        """Our kernel's calls for `states` [T, K] and `output` [T, N], dense float32 both."""
        parts = output.split([weight.rows for weight in self.weights], 1)
        return [
            calls.quantised(weight, bias, states, part)
            for weight, bias, part in zip(self.weights, self._biases, parts, strict=True)
        ]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` float32 [..., K] to [..., N]."""
        flat = states.reshape(-1, self.in_features).contiguous()
        output = flat.new_empty(len(flat), self.out_features)
        parts = output.split([weight.rows for weight in self.weights], 1)
        for weight, bias, way, part in zip(
            self.weights, self._biases, self._ways, parts, strict=True
        ):
            ordered = flat if weight.order is None else flat[:, weight.order.long()]
            if len(flat) < way[0]:
                self._team.run(calls.quantised(weight, bias, ordered, part))
            else:
                by_panels(weight, ordered, part, way[1], self._team)
                part.add_(0 if bias is None else bias)
        return output.view(*states.shape[:-1], -1)

    # Nothing hooks into these layers, and the looking for hooks costs as much as a small product.
    __call__ = forward


def _parts_of(
    bias: torch.Tensor | None, weights: Sequence[QuantisedWeight]
) -> Sequence[torch.Tensor | None]:
    if bias is None:
        return [None] * len(weights)
    return bias.split([weight.rows for weight in weights])


def by_panels(
    weight: QuantisedWeight,
    states: torch.Tensor,
    output: torch.Tensor,
    dtype: torch.dtype,
    team: Team,
) -> None:
    """`output` [T, N] = `states` [T, K] times a weight, unpacked to `dtype` panel by panel."""
    rows = max(1, _PANEL_ELEMENTS // weight.columns)
    panel = torch.empty(min(rows, weight.rows), weight.columns, dtype=dtype)
    taken = states.to(dtype)
    for first in range(0, weight.rows, rows):
        piece = weight.pick(slice(first, first + rows))
        numbers = panel[: piece.rows]
        team.run(calls.unpack(piece, numbers))
        output[:, first : first + rows] = taken @ numbers.T


def unpacked(team: Team, form: Format, data: torch.Tensor) -> torch.Tensor:
    """`daemon.engine.quantised.unpack.unpack`, by our kernel."""
    columns = data.shape[1] // form.block_bytes * form.block_len
    weight = QuantisedWeight(form, data, columns)
    output = torch.empty(weight.rows, columns)
    team.run(calls.unpack(weight, output))
    return output


class MeasuredMany:
    """Measures, once for each format and width, from how many tokens on panels are faster."""

    def __init__(self, team: Team, exact: bool) -> None:
        self._team = team
        self._dtypes = [torch.float32]
        if not exact and multiplies_bfloat16():
            self._dtypes.append(torch.bfloat16)
        self._found: dict[tuple[str, int], tuple[int, torch.dtype]] = {}

    def __call__(self, weight: QuantisedWeight) -> tuple[int, torch.dtype]:
        """See `Many`."""
        key = weight.format.name, weight.columns
        if key not in self._found:
            self._found[key] = self._measured(weight.pick(slice(0, _TRIED_ROWS)))
        return self._found[key]

    def _measured(self, weight: QuantisedWeight) -> tuple[int, torch.dtype]:
        for count in _TRIED_TOKENS:
            states, output = torch.randn(count, weight.columns), torch.empty(count, weight.rows)
            call = calls.quantised(weight, None, states, output)
            kernel_s = _fastest_s(partial(self._team.run, call))
            times = {
                dtype: _fastest_s(partial(by_panels, weight, states, output, dtype, self._team))
                for dtype in self._dtypes
            }
            best = min(times, key=lambda dtype: times[dtype])
            if times[best] < kernel_s:
                return count, best
        return NEVER, torch.float32


def _fastest_s(way: Callable[[], None]) -> float:
    times = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        way()
        times.append(time.perf_counter() - began)
    return min(times)


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions that multiply bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
