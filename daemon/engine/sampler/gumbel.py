"""The sampling itself, with torch and numpy: the best of all scores, logit and noise together."""

import numpy as np
import torch

from daemon.engine.sampler.noise import (
    BLOCK,
    SLACK,
    Floats,
    Integers,
    UInts,
    block_waits,
    log,
    noise,
)

_SCORED_AT_ONCE = 4096
"""Blocks whose tokens' noise is looked at together."""


def sample_listed(depths: torch.Tensor, tokens: torch.Tensor, keys: UInts) -> torch.Tensor:
    """Sample one of each row's listed tokens.

    `depths` float32 [R, N]: how far below the row's best they lie, over the temperature (infinite:
    never sampled; some are finite); `tokens` int64 [R, N]; `keys` [R] of `noise`. Returns int64
    [R].
    """
    ids = tokens.numpy()
    scores = noise(keys[:, None], ids) - depths.numpy()
    best = scores.max(1, keepdims=True)
    # Of equal ones the lowest, in whatever order they are listed.
    return torch.from_numpy(np.where(scores == best, ids, np.iinfo(np.int64).max).min(1))


def sample(depths: torch.Tensor, keys: UInts) -> torch.Tensor:
    """Sample one token of each row of `depths` [R, V], as `sample_listed` has it of all tokens."""
    rows, vocab = depths.shape
    num_blocks = -(-vocab // BLOCK)
    whole = np.full((rows, num_blocks * BLOCK), np.inf, np.float32)
    whole[:, :vocab] = depths.numpy()
    blocks = whole.reshape(rows, num_blocks, BLOCK)
    waits, firsts = block_waits(keys[:, None], np.arange(num_blocks))
    most = -log(waits)
    # What is sure already: the score of each block's first.
    sure = (most - np.take_along_axis(blocks, firsts[:, :, None], 2)[:, :, 0]).max(1)
    sure = np.maximum(sure, _best_scores(whole, keys))
    row, block = (most - blocks.min(2) + SLACK >= sure[:, None]).nonzero()
    scores, tokens = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.int64)
    for first in range(0, len(row), _SCORED_AT_ONCE):
        part = slice(first, first + _SCORED_AT_ONCE)
        _better(blocks, row[part], block[part], keys, scores, tokens)
    return torch.from_numpy(tokens)


def _best_scores(depths: Floats, keys: UInts) -> Floats:
    """The scores [R] of the tokens of the best logits."""
    best = depths.argmin(1)[:, None]
    found: Floats = (noise(keys[:, None], best) - np.take_along_axis(depths, best, 1))[:, 0]
    return found


def _better(
    blocks: Floats,
    row: Integers,
    block: Integers,
    keys: UInts,
    scores: Floats,
    tokens: Integers,
) -> None:
    """Look through some blocks [C] of rows, in order, for better `scores` [R] and `tokens`."""
    ids = block[:, None] * BLOCK + np.arange(BLOCK)
    found = noise(keys[row][:, None], ids) - blocks[row, block]
    place = found.argmax(1)
    each = np.arange(len(row))
    for target, score, token in zip(row, found[each, place], ids[each, place], strict=True):
        if score > scores[target]:
            scores[target], tokens[target] = score, token
