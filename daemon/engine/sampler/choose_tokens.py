"""Sampling of a whole batch by torch on a CPU. It reads values: a GPU would wait."""

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.sampler.columns import Params, filtered
from daemon.engine.sampler.filters import Filters, draw_filtered
from daemon.engine.sampler.gumbel import sample
from daemon.engine.sampler.noise import UInts, keys

Positions = npt.NDArray[np.int64]


def choose_tokens(logits: torch.Tensor, params: Params, positions: Positions) -> torch.Tensor:
    """Sample a token of each row of `logits` [R, V] for `positions` [R].

    Returns int64 [2, R]: the tokens, and 1 for rows that have none, because their best logit is not
    a finite number (their token is 0).
    """
    # torch's own `max` takes ten times as long.
    numbers = logits.float().numpy()
    tokens = numbers.argmax(-1)
    best = numbers[np.arange(len(numbers)), tokens]
    broken = ~np.isfinite(best)
    tokens[broken] = 0
    drawing = ((params["inverse"] > 0) & ~broken).nonzero()[0]
    if len(drawing):
        index = torch.from_numpy(drawing)
        noise = keys(params["seed"][drawing], positions[drawing])
        drawn = _sampled_of(logits, torch.from_numpy(best), index, params[drawing], noise)
        tokens[drawing] = drawn.numpy()
    return torch.from_numpy(np.stack((tokens, broken)))


def _sampled_of(
    logits: torch.Tensor,
    best: torch.Tensor,
    index: torch.Tensor,
    params: Params,
    noise: UInts,
) -> torch.Tensor:
    """Tokens int64 [D] of the rows `index` [D], which are not greedy."""
    if len(index) < len(logits):
        logits, best = logits[index], best[index]
    inverse = _tensor(params["inverse"]).unsqueeze(1)
    scaled = (logits.float() - best.float().unsqueeze(1)).mul_(inverse)
    cut = filtered(params)
    filters = Filters(*(_tensor(params[name]) for name in ("top_k", "top_p", "min_p")))
    if cut.all():
        return draw_filtered(scaled, filters, noise)
    if not cut.any():
        return sample(-scaled, noise)
    tokens = torch.empty(len(index), dtype=torch.int64)
    some, rest = np.flatnonzero(cut), np.flatnonzero(~cut)
    index = torch.from_numpy(some)
    tokens[index] = draw_filtered(scaled[index], filters.rows(index), noise[some])
    index = torch.from_numpy(rest)
    tokens[index] = sample(-scaled[index], noise[rest])
    return tokens


def _tensor(column: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(column.copy())
