"""Products with weights in blocks on the CPU, in the ways that were chosen for them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import nn

from daemon.engine.cpu import quantised_calls as calls
from daemon.engine.cpu.blocks import CHUNK_LEN
from daemon.engine.cpu.product_implementations import PANELS, ProductWay, ProductWays
from daemon.engine.cpu.quantised_calls import Columns
from daemon.engine.cpu.rounded_kernels import lanes_for
from daemon.engine.cpu.team import HERE_ELEMENTS, Call, Team
from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import WeightFormat

PANEL_BYTES = 2**21
"""Bytes that are unpacked for one product of torch's."""

_PANEL_TYPES = {ProductWay.FLOAT32_PANEL: torch.float32, ProductWay.BFLOAT16_PANEL: torch.bfloat16}
_NO_BLOCKS = {"F32": torch.float32, "BF16": torch.bfloat16}


class StateBuffers:
    """Buffers for states of up to `most_tokens`: calls that run after each other share them."""

    def __init__(self, most_tokens: int, fewer: bool = True, zeroed: bool = False) -> None:
        """`fewer`: some calls are for fewer tokens; `zeroed`: some rows may be computed without
        having been written.
        """
        self._most_tokens = most_tokens
        self._fewer = fewer
        self._zeroed = zeroed
        self._buffers: dict[tuple[str, int, int], torch.Tensor] = {}

    def floats(self, name: str, count: int, width: int) -> torch.Tensor:
        """float32 [T, K] for states in another order."""
        buffer = self._buffer(name, 4 * self._most_tokens * width, width, 0)
        return buffer.view(torch.float32).view(-1, width)[:count]

    def packed(self, width: int) -> torch.Tensor:
        """Bytes for states in bfloat16, for matrices."""
        return self._buffer("packed", calls.pair_record_bytes(self._most_tokens, width), width, 0)

    def records(self, width: int, lanes: int) -> torch.Tensor:
        """Bytes for rounded states."""
        size_bytes = calls.record_bytes(self._most_tokens, width, lanes)
        return self._buffer("records", size_bytes, width, lanes)

    def _buffer(self, name: str, size_bytes: int, width: int, lanes: int) -> torch.Tensor:
        key = name, width, lanes
        if key not in self._buffers:
            make = torch.zeros if self._zeroed else torch.empty
            buffer = make(size_bytes, dtype=torch.uint8)
            if lanes > 1 and not self._zeroed:
                # Lanes of no token are in the last record; they are computed too, and odd numbers
                # there may be slow.
                last = 0 if self._fewer else -calls.record_bytes(1, width, lanes)
                buffer[last:] = 0
            self._buffers[key] = buffer
        return self._buffers[key]


_SPLIT, _PACKED = -1, -2
"""Forms of states that are no records."""


class _States:
    """States [T, K] in each form that weights take, and the calls that make it when first asked."""

    def __init__(self, states: torch.Tensor, scratch: StateBuffers) -> None:
        self.here = states
        self.listed: list[Call] = []
        self._states = states
        self._scratch = scratch
        self._order: torch.Tensor | None = None
        self._made: dict[int, torch.Tensor] = {}  # by lanes, or one of those

    def order(self, order: torch.Tensor | None) -> None:
        """Put the columns into an order, from now on."""
        if order is self._order:
            return
        self._order, self._made, self.here = order, {}, self._states
        if order is not None:
            self.here = self._scratch.floats("ordered", *self._states.shape)
            self.listed.append(calls.reordered(self._states, order, self.here))

    def pairs(self) -> torch.Tensor:
        """The states in the order of pairs."""
        if _SPLIT not in self._made:
            self._made[_SPLIT] = self._scratch.floats("pairs", *self.here.shape)
            self.listed.append(calls.split(self.here, self._made[_SPLIT]))
        return self._made[_SPLIT]

    def packed(self) -> torch.Tensor:
        """The states rounded to bfloat16, for matrices."""
        if _PACKED not in self._made:
            self._made[_PACKED] = self._scratch.packed(self.here.shape[1])
            self.listed.append(calls.packed(self.here, self._made[_PACKED]))
        return self._made[_PACKED]

    def records(self, lanes: int) -> torch.Tensor:
        """The rounded states, `lanes` tokens in each record."""
        if lanes not in self._made:
            self._made[lanes] = self._scratch.records(self.here.shape[1], lanes)
            self.listed.append(calls.rounded(self.here, self._made[lanes], lanes))
        return self._made[lanes]


class QuantisedProduct(nn.Module):
    """`states` float32 [T, K] by weights [N, K], below each other, transposed: [T, sum of N].

    Raises ValueError where there are no kernels for a weight; see `can_multiply`.
    """

    def __init__(
        self,
        weights: Sequence[QuantisedWeight],
        bias: torch.Tensor | None,
        team: Team,
        ways: ProductWays,
    ) -> None:
        super().__init__()
        for weight in weights:
            if not can_multiply(weight):
                form = weight.format.name
                raise ValueError(f"no product on the CPU for {form} of {weight.columns} columns")
        self.weights = tuple(weights)
        self.bias = None if bias is None else bias.float().contiguous()
        self.in_features = weights[0].columns
        ends = list(accumulate((weight.rows for weight in weights), initial=0))
        self.out_features = ends.pop()
        self._firsts = ends
        self._team = team
        self._ways = ways

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """`states` float32 [..., K] to [..., sum of N]."""
        rows = states.reshape(-1, self.in_features).contiguous()
        output = rows.new_empty(rows.shape[0], self.out_features)
        if rows.shape[0]:
            self._compute(rows, output)
        return output.view(*states.shape[:-1], self.out_features)

    @property
    def weight(self) -> torch.Tensor:
        """The numbers float32 [N, K], for modelling code that looks at them itself; a copy."""
        return torch.cat([weight.numbers() for weight in self.weights])

    # Nothing hooks into these layers, and the looking for hooks costs as much as a small product.
    __call__ = forward

    def in_calls(self, count: int) -> bool:
        """Whether `calls` computes products of T tokens: torch has no part in them."""
        return all(self._ways.of(weight, count) not in PANELS for weight in self.weights)

    def alike(self, count: int, other: int) -> bool:
        """Whether a token among T gets the same numbers as among others; see `ProductWays`."""
        return all(self._ways.alike(weight, count, other) for weight in self.weights)

    def calls(
        self, states: torch.Tensor, output: torch.Tensor, scratch: StateBuffers
    ) -> list[Call] | None:
        """Calls that compute `output` [T, sum of N] of `states` [T, K], float32 and dense.

        They name buffers of `scratch`, as later calls do, so they run in their order. None where
        torch computes a part.
        """
        count = states.shape[0]
        if not self.in_calls(count):
            return None
        return self._listed(states, output, scratch)

    def _compute(self, states: torch.Tensor, output: torch.Tensor) -> None:
        scratch = StateBuffers(states.shape[0], fewer=False)  # outlives the run
        listed = self._listed(states, output, scratch)
        if listed:
            self._team.run_calls(listed)
        for weight, columns in self._parts(output):
            way = self._ways.of(weight, states.shape[0])
            if way in PANELS:
                self._multiply(weight, states, columns, _PANEL_TYPES[way])

    def _parts(self, output: torch.Tensor) -> Iterator[tuple[QuantisedWeight, Columns]]:
        """Each weight, and the columns of its product."""
        for weight, first in zip(self.weights, self._firsts, strict=True):
            yield weight, Columns(output, first, self.bias)

    def _listed(
        self, states: torch.Tensor, output: torch.Tensor, scratch: StateBuffers
    ) -> list[Call]:
        """The calls of all weights that torch has no part in."""
        count, made = states.shape[0], _States(states, scratch)
        for weight, columns in self._parts(output):
            way = self._ways.of(weight, count)
            if way in PANELS:
                continue
            made.order(weight.order)
            if way is ProductWay.FLOATS_SINGLY:
                call = calls.floats_singly(weight, made.here, columns)
            elif way is ProductWay.FLOATS_TOGETHER:
                here = made.pairs() if calls.takes_pairs(weight) else made.here
                call = calls.floats_together(weight, here, columns)
            elif way is ProductWay.BFLOAT16_BY_MATRICES:
                call = calls.matrices(weight, made.packed(), count, columns)
            elif way is ProductWay.ROUNDED_SINGLY:
                call = calls.rounded_singly(weight, made.records(1), count, columns)
            else:
                lanes = lanes_for(count)
                call = calls.rounded_together(weight, made.records(lanes), count, columns, lanes)
            made.listed.append(call)
        return made.listed

    def _multiply(
        self, weight: QuantisedWeight, states: torch.Tensor, columns: Columns, kind: torch.dtype
    ) -> None:
        """Panels of rows, unpacked and multiplied by torch."""
        if weight.order is not None:
            states = states[:, weight.order]
        states = states.to(kind)
        for rows, panel in self._panels(weight, kind):
            first = columns.first + rows.start
            target = columns.output[:, first : first + len(rows)]
            if kind is torch.float32:
                torch.mm(states, panel.T, out=target)
            else:
                target.copy_(torch.mm(states, panel.T))
            if columns.bias is not None:
                target += columns.bias[first : first + len(rows)]

    def _panels(
        self, weight: QuantisedWeight, kind: torch.dtype
    ) -> Iterator[tuple[range, torch.Tensor]]:
        if _NO_BLOCKS.get(weight.format.name) is kind:
            yield range(weight.rows), weight.data.view(kind)
            return
        height = max(PANEL_BYTES // (kind.itemsize * weight.columns), 1)
        buffer = torch.empty(min(height, weight.rows), weight.columns, dtype=kind)
        for start in range(0, weight.rows, height):
            rows = range(start, min(start + height, weight.rows))
            panel = buffer[: len(rows)]
            self._team.run(calls.unpacked(weight, rows, panel))
            yield rows, panel


def can_multiply(weight: QuantisedWeight) -> bool:
    """Whether there are kernels for a weight: it is dense, on a CPU, and of whole chunks."""
    data = weight.data
    on_cpu = data.device.type == "cpu" and data.is_contiguous()
    return on_cpu and weight.columns % CHUNK_LEN == 0 and weight.columns > 0


def unpacked(team: Team, form: WeightFormat, data: torch.Tensor) -> torch.Tensor:
    """As `daemon.engine.quantised.unpack.unpack`, by our kernels where they can."""
    columns = data.shape[1] // form.block_bytes * form.block_len
    weight = QuantisedWeight(form, data, columns)
    if not can_multiply(weight) or not weight.rows:
        return unpack(form, data)
    output = torch.empty(weight.rows, columns)
    team.run(calls.unpacked(weight, range(weight.rows), output))
    return output


def look_up(weight: QuantisedWeight, indices: torch.Tensor, team: Team) -> torch.Tensor:
    """float32 [T, K]: the rows of `indices` int32 [T], as of embeddings."""
    output = torch.empty(len(indices), weight.columns)
    if len(indices):
        rows = range(len(indices))
        run = team.run_here if output.numel() <= HERE_ELEMENTS else team.run
        run(calls.unpacked(weight, rows, output, indices.contiguous()))
    return output
