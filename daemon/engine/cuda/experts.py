"""The experts of a mixture on a GPU: two grouped products for all tokens of a step and all experts.

Which experts a step chose is never read on the host, so CUDA graphs can hold it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from daemon.engine.cuda.triton.activation import silu_mul
from daemon.engine.cuda.triton.expert_products import BlockStack, grouped_product
from daemon.engine.cuda.triton.expert_sums import clamped_mul, summed_shares
from daemon.engine.cuda.triton.expert_tiles import ExpertTiles, tiles_of
from daemon.engine.cuda.unpacking import can_read
from daemon.engine.families import ACTIVATION, ByTorch
from daemon.engine.quantised.experts import (
    ClampedGate,
    QuantisedExperts,
    SiluGate,
    put_biases,
    stacked,
)
from daemon.engine.quantised.weight import QuantisedWeight

MOST_TOKENS = 2048
"""Tokens that are computed together: each takes rows of k experts."""

Gated = Callable[[torch.Tensor], torch.Tensor]
"""The function between an expert's layers: from [P, rows] to [P, inner]."""


class GroupedExperts(nn.Module):
    """`QuantisedExperts` by grouped products; see `grouped`."""

    def __init__(
        self,
        experts: QuantisedExperts,
        gate_up: Sequence[BlockStack],
        down: BlockStack,
        gated: Gated,
    ) -> None:
        super().__init__()
        self.weights = [weight for layer in experts.layers for weight in layer.weights]
        self.gate_up_bias = _kept(experts.bias("gate_up"))
        self.down_bias = _kept(experts.bias("down"))
        self._gate_up, self._down = tuple(gate_up), down
        self._gated = gated
        self._apart = experts.apart
        self._num_experts = len(experts.gate_up)

    def alike(self, count: int, other: int) -> bool:
        """See `QuantisedExperts`: nothing here rounds more than the model's type does."""
        return True

    def set_biases(self, expert: int, rows: Mapping[str, torch.Tensor]) -> None:
        """See `QuantisedExperts`."""
        put_biases(
            {"gate_up": self.gate_up_bias, "down": self.down_bias}, expert, rows, self._apart
        )

    def each(self, states: torch.Tensor, which: torch.Tensor, _share: int) -> torch.Tensor:
        """See `QuantisedExperts`."""
        return self(states, which.unsqueeze(1), states.new_ones(len(states), 1))

    def forward(
        self, states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """See `QuantisedExperts`."""
        pieces = (it.contiguous().split(MOST_TOKENS) for it in (states, chosen, shares))
        made = [self._piece(*piece) for piece in zip(*pieces, strict=True)]
        return made[0] if len(made) == 1 else torch.cat(made)

    def _piece(
        self, states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        tiles = tiles_of(chosen, self._num_experts)
        wide = self._products(self._gate_up, states, tiles, self.gate_up_bias)
        inner = self._gated(wide)
        return summed_shares(self._products([self._down], inner, tiles, self.down_bias), shares)

    def _products(
        self,
        stacks: Sequence[BlockStack],
        states: torch.Tensor,
        tiles: ExpertTiles,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """[P, rows of all stacks], one stack's rows behind another's."""
        rows = [stack.rows for stack in stacks]
        made = states.new_empty(tiles.num_pairs, sum(rows))
        biases = [None] * len(rows) if bias is None else bias.split(rows, 1)
        for stack, part, added in zip(stacks, made.split(rows, 1), biases, strict=True):
            grouped_product(stack, states, tiles, added, part)
        return made


def grouped(experts: QuantisedExperts, by_torch: ByTorch) -> GroupedExperts | None:
    """The module that computes experts together; None where they differ, or cannot be read."""
    gate_up, down = (stacked(layers, can_read) for layers in (experts.gate_up, experts.down))
    gated = _gated(experts, by_torch)
    if gate_up is None or down is None or gated is None or len(down) != 1:
        return None
    return GroupedExperts(experts, [*map(_stack, gate_up)], _stack(down[0]), gated)


def _stack(weights: Sequence[QuantisedWeight]) -> BlockStack:
    first = weights[0]
    addresses = [weight.data.data_ptr() for weight in weights]
    place = torch.tensor(addresses, dtype=torch.int64, device=first.data.device)
    return BlockStack(first.format, place, first.rows, first.columns)


def _gated(experts: QuantisedExperts, by_torch: ByTorch) -> Gated | None:
    gate, in_turns = experts.gate, not experts.apart
    if isinstance(gate, ClampedGate):
        return partial(clamped_mul, limit=gate.limit, alpha=gate.alpha, in_turns=in_turns)
    if isinstance(gate, SiluGate) and ACTIVATION not in by_torch:
        return silu_mul
    return experts.gated if in_turns else None


def _kept(bias: torch.Tensor | None) -> nn.Parameter | None:
    return None if bias is None else nn.Parameter(bias.detach().contiguous(), requires_grad=False)
