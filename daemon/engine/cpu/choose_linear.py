"""Chooses how float32 weights are read for one token, by measuring both ways here and now."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from daemon.engine.cpu import calls
from daemon.engine.cpu.team import Team, table_of

_MOST_BYTES = 2**27
"""Most bytes of weights that a measurement reads: more than a cache holds."""

_ROUNDS = 5


def reads_in_turn(weights: Sequence[torch.Tensor], team: Team) -> bool:
    """Whether columns one after another are read faster than four side by side.

    Of a model's weights [N, K], so that they come from memory as they will.
    """
    chosen, size_bytes = list[torch.Tensor](), 0
    for weight in weights:
        if size_bytes < _MOST_BYTES:
            chosen.append(weight)
            size_bytes += weight.nbytes
    tables = [_table(chosen, waited_longest) for waited_longest in (False, True)]
    took_s = np.full((_ROUNDS, 2), np.inf)
    for turn in range(_ROUNDS):
        for way, (table, _) in enumerate(tables):
            begin_s = time.perf_counter()
            team.run_program(table)
            took_s[turn, way] = time.perf_counter() - begin_s
    side_by_side_s, in_turn_s = took_s.min(0)
    return bool(in_turn_s < side_by_side_s)


def _table(
    weights: Sequence[torch.Tensor], waited_longest: bool
) -> tuple[np.ndarray, list[torch.Tensor]]:
    """A program of products of one token with all of these weights, and its buffers."""
    buffers = [torch.zeros(1, max(max(weight.shape) for weight in weights)) for _ in range(2)]
    states, output = buffers
    listed = [
        calls.linear(
            weight, None, states[:, : weight.shape[1]], output[:, : weight.shape[0]], waited_longest
        )
        for weight in weights
    ]
    return table_of(listed), buffers
