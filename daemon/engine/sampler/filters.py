"""Top-k, top-p and min-p, in this order, exactly, without sorting whole vocabularies.

Each filter is a cut: a token stays if its logit reaches it. So ties at a cut all stay, and what
stays depends on the logits alone, not on how a device happens to order equal values.
"""

from dataclasses import dataclass

import numpy as np
import torch

from daemon.engine.sampler.gumbel import sample, sample_listed
from daemon.engine.sampler.noise import UInts

WIDTH = 128
"""Best tokens looked at first; rows that these cannot settle are sorted as a whole."""

_GROUP = 16


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of R rows: `top_k` int64 (0: off), `top_p`, `min_p` float32, each [R]."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    def rows(self, index: torch.Tensor) -> "Filters":
        """The filters of some rows."""
        return Filters(self.top_k[index], self.top_p[index], self.min_p[index])


def draw_filtered(logits: torch.Tensor, filters: Filters, keys: UInts) -> torch.Tensor:
    """Sample a token of each row from those that its filters leave.

    `logits` float32 [R, V], over the temperature and shifted so that each row's maximum is 0;
    `keys` [R] of `noise`. Returns int64 [R].
    """
    mass = logits.exp().sum(-1)
    values, ids = best_tokens(logits, min(WIDTH, logits.shape[1]))
    cut, settled = _cuts(values, mass, filters)
    tokens = sample_listed(_depths(values, cut), ids, keys)
    rest = (~settled).nonzero().squeeze(1)
    if len(rest):
        some = logits if len(rest) == len(logits) else logits[rest]
        cut, _ = _cuts(_falling(some), mass[rest], filters.rows(rest))
        tokens[rest] = sample(_depths(some, cut), keys[rest.numpy()])
    return tokens


def _depths(logits: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    """How far below the best logits [R, N] lie, infinitely beyond their row's cut [R]."""
    return (-logits).masked_fill_(logits < cut.unsqueeze(1), torch.inf)


def _falling(logits: torch.Tensor) -> torch.Tensor:
    """Each row sorted, best first. numpy's vector sort is 20 times torch's."""
    return torch.from_numpy(-np.sort(-logits.numpy(), axis=-1))


def best_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest values of each row, falling, and their columns; [R, count] each."""
    groups = logits.shape[1] // _GROUP
    if logits.device.type != "cpu" or groups < 4 * count:
        values, ids = logits.topk(count)
        return values, ids
    # The best tokens lie in the groups with the best maxima: a topk of 1/16 of the values.
    body = groups * _GROUP
    maxima = logits[:, :body].view(-1, _GROUP, groups).amax(1)
    first = maxima.topk(count, sorted=False).indices
    members = torch.arange(0, body, groups).view(1, _GROUP, 1)
    tail = torch.arange(body, logits.shape[1]).expand(len(logits), -1)
    candidates = torch.cat([(first.unsqueeze(1) + members).flatten(1), tail], 1)
    values, picked = logits.gather(1, candidates).topk(count)
    return values, candidates.gather(1, picked)


def _cuts(
    values: torch.Tensor, mass: torch.Tensor, filters: Filters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's cut [R], and whether `values` (the best K, falling) suffice to know it [R].

    They suffice if the cut lies above the last of them: no token outside can then reach it. (A
    top-p that they do not fill puts its cut at the last, so it never suffices by itself.) But where
    the last is as good as the k-th, others outside may be, too, and are in what top-p is a share
    of. And they suffice if they hold a token that cannot be sampled: then all that can be are among
    them.
    """
    width = values.shape[1]
    off = torch.full_like(mass, -torch.inf)
    kth = values.gather(1, (filters.top_k.clamp(1, width) - 1).unsqueeze(1)).squeeze(1)
    k_cut = torch.where(filters.top_k > 0, kth, off)
    weights = values.exp().masked_fill_(values < k_cut.unsqueeze(1), 0.0)
    mass = torch.where(filters.top_k > 0, weights.sum(-1), mass)
    index = (weights.cumsum(-1) < (filters.top_p * mass).unsqueeze(1)).sum(-1)
    nth = values.gather(1, index.clamp(max=width - 1).unsqueeze(1)).squeeze(1)
    p_cut = torch.where(filters.top_p < 1.0, nth, off)
    cut = k_cut.maximum(p_cut).maximum(filters.min_p.log())
    last = values[:, -1]
    knows_mass = (filters.top_k == 0) | ((filters.top_k <= width) & (last < k_cut))
    return cut, (last == -torch.inf) | (knows_mass & (last < cut))
