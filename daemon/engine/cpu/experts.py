"""The experts of a mixture on the CPU: a few calls for all tokens of a step and all experts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from daemon.engine.cpu import (
    calls,
    expert_calls,
    matrix_kernels,
    pair_kernels,
    quantised_kernels,
    rounded_kernels,
)
from daemon.engine.cpu import quantised_calls as products
from daemon.engine.cpu.expert_calls import ExpertRows, GroupedProduct
from daemon.engine.cpu.matrix_dots import MATRIX
from daemon.engine.cpu.product_implementations import ROUNDED, ProductWay, ProductWays
from daemon.engine.cpu.quantised import StateBuffers, can_multiply
from daemon.engine.cpu.rounded_kernels import lanes_for
from daemon.engine.cpu.team import Call, Team
from daemon.engine.quantised.experts import QuantisedExperts, SiluGate, put_biases, stacked
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS

_KERNELS: dict[ProductWay, Any] = {
    ProductWay.FLOATS_SINGLY: quantised_kernels.floats_singly,
    ProductWay.FLOATS_TOGETHER: quantised_kernels.floats_together,
    ProductWay.ROUNDED_SINGLY: rounded_kernels.rounded_singly,
    ProductWay.ROUNDED_TOGETHER: rounded_kernels.rounded_together,
    ProductWay.BFLOAT16_BY_MATRICES: matrix_kernels.matrices,
}
"""By way, from the name of a format to the kernel of a product."""

MOST_TOKENS = 512
"""Tokens that are computed together: each takes rows of k experts."""


class Stack:
    """The same weight of every expert: of one format and size."""

    def __init__(self, weights: Sequence[QuantisedWeight]) -> None:
        self.weights = tuple(weights)
        self.first = weights[0]
        self.format = weights[0].format.name
        self.addresses = expert_calls.addresses([weight.data for weight in weights])


class KeptBuffers:
    """Buffers that the experts of all layers share: as large as was needed so far."""

    def __init__(self) -> None:
        self._most_rows = 0
        self._buffers = StateBuffers(0)

    def of(self, num_rows: int) -> StateBuffers:
        """Buffers for `num_rows` rows, until more are asked for."""
        if num_rows > self._most_rows:
            self._most_rows, self._buffers = num_rows, StateBuffers(num_rows, zeroed=True)
        return self._buffers


class ExpertProducts(nn.Module):
    """`QuantisedExperts` by kernels. Raises ValueError where it cannot; see `can_group`."""

    def __init__(
        self,
        experts: QuantisedExperts,
        team: Team,
        ways: ProductWays,
        kept: KeptBuffers,
        exact: bool = False,
    ) -> None:
        """`exact`: nothing in the model rounds states."""
        super().__init__()
        gate_up, down = _stacks(experts)
        gate = experts.gate
        if gate_up is None or down is None or gate is None:
            raise ValueError("these experts differ from each other, or are gated otherwise")
        self._gate, self._in_turns = gate, not experts.apart
        self._limits = torch.tensor(list(gate) or [0.0])
        self._biases = {layer: _bias(experts, layer) for layer in ("gate_up", "down")}
        self._gate_up, self._down = gate_up, down
        self._team = team
        self._ways = ways
        self._kept = kept
        self._exact = exact
        self.num_experts = len(gate_up[0].weights)
        self.width = gate_up[0].first.columns
        self.inner = down[0].first.columns

    @property
    def weights(self) -> list[QuantisedWeight]:
        """All weights."""
        return [weight for stack in (*self._gate_up, *self._down) for weight in stack.weights]

    def alike(self, count: int, other: int) -> bool:
        """See `QuantisedExperts`."""
        return count == other or self._exact

    def multiple(self, count: int, num_chosen: int) -> int:
        """The multiple at which an expert's rows begin, of T tokens with k experts each."""
        return self._multiple(self._share(count, num_chosen))

    def _multiple(self, share: int) -> int:
        ways = [self._ways.of(stack.first, share) for stack in (*self._gate_up, *self._down)]
        return max(_lanes(way, share) for way in ways)

    def each(self, states: torch.Tensor, which: torch.Tensor, share: int) -> torch.Tensor:
        """See `QuantisedExperts`; the way that multiplies is that of this `share`."""
        states = states.contiguous()
        output = torch.empty(states.shape)
        rows = ExpertRows.of(len(states), 1, self.num_experts, self._multiple(share))
        rows.chosen.copy_(which.unsqueeze(1))
        rows.shares.fill_(1.0)
        kept = self._kept.of(rows.num_rows)
        self._team.run_calls(self.calls(states, rows, output, kept, share=share))
        return output

    def set_biases(self, expert: int, rows: Mapping[str, torch.Tensor]) -> None:
        """See `QuantisedExperts`."""
        put_biases(self._biases, expert, rows, not self._in_turns)

    def forward(
        self, states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """See `QuantisedExperts`; `states` float32."""
        output = torch.empty(states.shape)
        pieces = (
            tensor.split(MOST_TOKENS) for tensor in (states.contiguous(), chosen, shares, output)
        )
        for some, of_some, in_shares, target in zip(*pieces, strict=True):
            if not len(some):
                continue
            count, num_chosen = of_some.shape
            multiple = self.multiple(count, num_chosen)
            rows = ExpertRows.of(count, num_chosen, self.num_experts, multiple)
            rows.chosen.copy_(of_some)
            rows.shares.copy_(in_shares)
            self._team.run_calls(self.calls(some, rows, target, self._kept.of(rows.num_rows)))
        return output

    def calls(
        self,
        states: torch.Tensor,
        rows: ExpertRows,
        output: torch.Tensor,
        scratch: StateBuffers,
        beside: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
        share: int = 0,
    ) -> list[Call]:
        """Calls that compute `output` [T, width] of `states` [T, width], both dense, with the
        experts that are chosen when they run. They name buffers of `scratch`; `beside`: what is
        added to the experts', and the logits of its share. `share`: tokens of an expert; 0: where
        they fall evenly.
        """
        share = share or self._share(*rows.chosen.shape)
        listed = [expert_calls.arranged(rows)]
        wide = scratch.floats("gate_up", rows.num_rows, sum(s.first.rows for s in self._gate_up))
        self._products(listed, (self._gate_up, share), states, True, rows, wide, scratch)
        self._add_bias(listed, "gate_up", wide, rows)
        inner = scratch.floats("inner", rows.num_rows, self.inner)
        if isinstance(self._gate, SiluGate):
            listed.append(calls.gated(wide, inner))
        else:
            listed.append(expert_calls.clamped(wide, inner, self._limits, self._in_turns))
        made = scratch.floats("made", rows.num_rows, self.width)
        self._products(listed, (self._down, share), inner, False, rows, made, scratch)
        self._add_bias(listed, "down", made, rows)
        listed.append(expert_calls.joined(made, rows, output, *beside))
        return listed

    def _add_bias(
        self, listed: list[Call], layer: str, made: torch.Tensor, rows: ExpertRows
    ) -> None:
        biases = self._biases[layer]
        if biases is not None:
            listed.append(expert_calls.biased(made, biases, rows))

    def _products(
        self,
        listed: list[Call],
        of_experts: tuple[Sequence[Stack], int],
        states: torch.Tensor,
        gather: bool,
        rows: ExpertRows,
        output: torch.Tensor,
        scratch: StateBuffers,
    ) -> None:
        """Products of `states`, which rows share where they are to be gathered; `of_experts`:
        weights, and how many tokens an expert has.
        """
        stacks, share = of_experts
        forms = _Forms(listed, states, gather, rows, scratch)
        first = 0
        for stack in stacks:
            way = self._ways.of(stack.first, share)
            lanes = _lanes(way, share)
            in_pairs = way is ProductWay.FLOATS_TOGETHER and products.takes_pairs(stack.first)
            kernel = pair_kernels.floats_together() if in_pairs else _KERNELS[way](stack.format)
            product = GroupedProduct(kernel.address, stack.addresses, stack.first, lanes)
            places = forms.of(way, lanes, in_pairs)
            listed.append(expert_calls.grouped(product, *places, rows, output, first))
            first += stack.first.rows

    def _share(self, count: int, num_chosen: int) -> int:
        """Tokens of an expert, where they fall evenly."""
        return -(-count * num_chosen // self.num_experts)


class _Forms:
    """The states of all rows in the forms that ways take, each made when first asked for."""

    def __init__(
        self,
        listed: list[Call],
        states: torch.Tensor,
        gather: bool,
        rows: ExpertRows,
        scratch: StateBuffers,
    ) -> None:
        self._listed, self._states, self._gather = listed, states, gather
        self._rows, self._scratch = rows, scratch
        self._made: dict[tuple[bool, bool, int], tuple[torch.Tensor, int]] = {}

    def of(self, way: ProductWay, lanes: int, in_pairs: bool) -> tuple[torch.Tensor, int]:
        """The rounded states, and the bytes of a row."""
        rounds = way in ROUNDED
        kind = rounds, in_pairs, lanes
        if kind not in self._made:
            self._made[kind] = self._rounded(lanes) if rounds else self._floats(way, in_pairs)
        return self._made[kind]

    def _rounded(self, lanes: int) -> tuple[torch.Tensor, int]:
        width = self._states.shape[1]
        records = self._scratch.records(width, lanes)
        call = expert_calls.rounded(self._states, records, lanes, self._rows, self._gather)
        self._listed.append(call)
        return records, products.record_bytes(1, width, 1)

    def _floats(self, way: ProductWay, in_pairs: bool) -> tuple[torch.Tensor, int]:
        found, width, count = self._states, self._states.shape[1], self._rows.num_rows
        if self._gather:
            stored = self._states.view(torch.uint8)
            plain = QuantisedWeight(FORMATS["F32"], stored, width)
            found = self._scratch.floats("gathered", count, width)
            self._listed.append(products.unpacked(plain, range(count), found, self._rows.tokens))
        if in_pairs:
            pairs = self._scratch.floats("pairs", count, width)
            self._listed.append(products.split(found, pairs))
            return pairs, 4 * width
        if way is not ProductWay.BFLOAT16_BY_MATRICES:
            return found, 4 * width
        packed = self._scratch.packed(width)
        self._listed.append(products.packed(found, packed))
        return packed, 2 * width


def can_group(experts: QuantisedExperts) -> bool:
    """Whether kernels compute some experts: their gate is known, and they are alike."""
    return experts.gate is not None and None not in _stacks(experts)


def _bias(experts: QuantisedExperts, layer: str) -> torch.Tensor | None:
    found = experts.bias(layer)
    return None if found is None else found.float().contiguous()


def _stacks(experts: QuantisedExperts) -> tuple[list[Stack] | None, list[Stack] | None]:
    gate_up, down = (stacked(layers, can_multiply) for layers in (experts.gate_up, experts.down))
    return (
        None if gate_up is None else [*map(Stack, gate_up)],
        None if down is None else [*map(Stack, down)],
    )


def _lanes(way: ProductWay, count: int) -> int:
    """The multiple at which an expert's rows begin."""
    if way is ProductWay.ROUNDED_TOGETHER:
        return lanes_for(count)
    return MATRIX if way is ProductWay.BFLOAT16_BY_MATRICES else 1
