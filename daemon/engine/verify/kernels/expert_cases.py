"""Experts of a mixture, computed together, against each expert's own product by torch."""

import torch
from torch.nn.functional import linear

from daemon.engine.cuda.triton.expert_products import BlockStack, grouped_product
from daemon.engine.cuda.triton.expert_sums import clamped_mul, summed_shares
from daemon.engine.cuda.triton.expert_tiles import TILE_ROWS, ExpertTiles, sorted_tiles
from daemon.engine.quantised.experts import ClampedGate
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.block_cases import random_weight
from daemon.engine.verify.kernels.compare import alike

_EXPERTS = 5
_IDLE = 1
"""An expert that no token is sent to."""
_CHOSEN = 2
_TOKENS = (1, 3, 70)
_INTERPRETED_TOKENS = (1, 3)
_GATE = ClampedGate(7.0, 1.702)


def try_experts(bench: Bench) -> None:
    """Try products with every weight of the subject's experts, in each height of tiles."""
    on_gpu = bench.device.type == "cuda"
    for tokens in _TOKENS if on_gpu else _INTERPRETED_TOKENS:
        _try_sums(bench, tokens)
        for shape in bench.subject.experts:
            weights = [random_weight(bench, *shape) for _ in range(_EXPERTS)]
            for rows in (1, *(TILE_ROWS if on_gpu else TILE_ROWS[:1])):
                _try_products(bench, weights, tokens, rows)


def _try_products(bench: Bench, weights: list[QuantisedWeight], tokens: int, rows: int) -> None:
    """Products of tokens' rows with a bias, and of pairs' own without."""
    first, chosen = weights[0], _chosen(bench, tokens)
    addresses = bench.column([weight.data.data_ptr() for weight in weights], torch.int64)
    stack = BlockStack(first.format, addresses, first.rows, first.columns)
    bias = bench.normal(_EXPERTS, first.rows)
    tiles = ExpertTiles(None, chosen.flatten(), 1, chosen.numel())
    if rows > 1:
        tiles = sorted_tiles(chosen, _EXPERTS, rows)
    for count, added in ((tokens, bias), (chosen.numel(), None)):
        states = bench.normal(count, first.columns)
        each = states.repeat_interleave(chosen.numel() // count, 0)
        found = torch.full((chosen.numel(), first.rows), torch.nan).to(states)
        grouped_product(stack, states, tiles, added, found)
        expected = torch.full_like(found, torch.nan)
        for expert, weight in enumerate(weights):
            own = (chosen == expert).flatten()
            numbers = weight.numbers().to(bench.dtype)
            expected[own] = linear(each[own], numbers, None if added is None else added[expert])
        alike(f"experts of {first.format.name} by {rows}", found, expected, bench.limit)


def _try_sums(bench: Bench, tokens: int) -> None:
    """Clamped gates, and sums by token."""
    width = min(bench.subject.gated, 4096) + 1
    states = 4 * bench.normal(tokens, 2 * width)
    halves = torch.cat((states[:, ::2], states[:, 1::2]), 1)
    expected = _GATE(states.float())
    for in_turns, given in ((True, states), (False, halves)):
        found = clamped_mul(given, _GATE.limit, _GATE.alpha, in_turns)
        alike("clamped gates", found, expected, bench.limit)
    made = bench.normal(tokens * _CHOSEN, width)
    shares = bench.normal(tokens, _CHOSEN).float().abs()
    whole = made.float().view(tokens, _CHOSEN, width) * shares.unsqueeze(-1)
    alike("sums of experts", summed_shares(made, shares), whole.sum(1), bench.limit)


def _chosen(bench: Bench, tokens: int) -> torch.Tensor:
    """Experts of tokens, some more often than others; one has none."""
    others = [expert for expert in range(_EXPERTS) if expert != _IDLE]
    pairs = [
        others[(token * token + place) % len(others)]
        for token in range(tokens)
        for place in range(_CHOSEN)
    ]
    return bench.column(pairs, torch.int64).view(tokens, _CHOSEN)
