"""Draws that depend on (seed, position) alone: recompute, swap and handoff repeat them."""

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

UINT64_MASK = (1 << 64) - 1
UNIFORM_BITS = 48
BLOCK = 256

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD1B54A32D192ED03)


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The splitmix64 finaliser: every input bit reaches every output bit."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position); no state between calls.

    `seeds` [R], `positions` [R], or [times, R] for several of each seed.
    """
    keys = _mixed(seeds + _GOLDEN)
    bits = _mixed(keys ^ _mixed(positions.astype(np.uint64) * _ODD + _GOLDEN))
    return (bits >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) * 2.0**-UNIFORM_BITS


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The column at which each row's running sum passes `uniform` of its total.

    `weights` float32 [R, N], not negative, each row with a positive sum; `uniform` float64 [R] in
    [0, 1). Returns int64 [R]; a column of weight 0 is never drawn.
    """
    if weights.shape[1] <= 4 * BLOCK:
        return _inverse_cdf(weights, uniform)[0]
    # Two levels: a double-precision running sum over 150,000 columns costs more than all the rest.
    weights = pad(weights, (0, -weights.shape[1] % BLOCK))
    blocks = weights.view(len(weights), -1, BLOCK)
    block, rest = _inverse_cdf(blocks.sum(-1), uniform)
    chosen = blocks[torch.arange(len(weights), device=weights.device), block]
    return block * BLOCK + _inverse_cdf(chosen, rest)[0]


def _inverse_cdf(weights: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The column [R] that `uniform` falls in, and where in it, again in [0, 1)."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    target = (uniform * sums[:, -1]).unsqueeze(1)
    column = torch.searchsorted(sums, target, right=True)
    width = weights.gather(1, column).double()
    inside = (target - (sums.gather(1, column) - width)) / width
    return column.squeeze(1), inside.squeeze(1).clamp(0.0, 1.0 - 2.0**-UNIFORM_BITS)
