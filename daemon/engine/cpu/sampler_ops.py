"""The sampler's work on a CPU by compiled calls: for a batch, and rules for whole programs."""

import numpy as np
import torch

from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import SampleColumns
from daemon.engine.cpu.team import Team
from daemon.engine.sampler.columns import Params
from daemon.engine.sampler.noise import keys
from daemon.engine.sampler.ops import Integers, TorchSamplerOps
from daemon.engine.sampler.rules import DrawRules, Float64
from daemon.engine.sampler.sample_columns import (
    EDIT_COLUMNS,
    FARTHEST,
    INVERSE,
    RULE_COLUMNS,
    TOP_K,
    TOP_P,
)


class CpuSamplerOps(TorchSamplerOps):
    """`SamplerOps` that samples by calls: the same ones alone, in a batch and within a program."""

    def __init__(self, vocab_size: int, team: Team) -> None:
        super().__init__(vocab_size)
        self._team = team

    def choose(self, logits: torch.Tensor, params: Params, positions: Integers) -> torch.Tensor:
        """See `SamplerOps`."""
        logits = logits.float().contiguous()
        noise = keys(params["seed"], positions)
        drawn, broken, tokens = found = np.zeros((3, len(logits)), np.int32)
        broken[:] = 1  # until it is sampled
        drawing = SampleColumns(_rules(params), noise, drawn, broken, tokens)
        self._team.run(calls.sample(logits, drawing))
        return torch.from_numpy(found[:2].astype(np.int64))

    def rules(self, params: Params, slots: Integers, positions: Integers, times: int) -> DrawRules:
        """See `SamplerOps`."""
        noise = keys(params["seed"], positions + np.arange(times)[:, None])
        edits = np.zeros((len(slots), EDIT_COLUMNS), np.int64)
        for row in params["edited"].nonzero()[0].tolist():
            self.edits[int(slots[row])].fill(edits[row], int(positions[row]), times)
        return DrawRules(_rules(params), noise, edits)

    def took(self, slots: Integers, times: int) -> None:
        """See `SamplerOps`."""
        for slot in slots.tolist():
            self.edits[slot].filled(times)


def _rules(params: Params) -> Float64:
    rules = np.empty((len(params), RULE_COLUMNS))
    rules[:, INVERSE], rules[:, TOP_K] = params["inverse"], params["top_k"]
    rules[:, TOP_P] = params["top_p"]
    with np.errstate(divide="ignore"):
        rules[:, FARTHEST] = -np.log(params["min_p"])
    return rules
