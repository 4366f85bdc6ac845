"""A made-up engine with a known cost, tiles included, and measurements of it with noise."""

import math
from dataclasses import dataclass

import numpy as np

from daemon.cost.work import StepWork
from daemon.lab.profiler.experiments import Experiment, LoadedLimits, experiments
from daemon.lab.profiler.points import Point
from daemon.lab.profiler.synthetic import PlanMaker

LIMITS = LoadedLimits(
    max_batch_tokens=512, max_slots=128, max_len=8192, num_blocks=8192, block_size=16
)


@dataclass(frozen=True)
class Truth:
    """Seconds of every part of a step."""

    fixed_s: float = 0.018
    token_s: float = 0.0012
    tile: int = 32  # tokens: a product computes whole tiles
    tile_share: float = 0.3  # of a token's time; the rest is per token
    sample_s: float = 0.0004
    context_s: float = 4e-6  # of a decode, for each token it attends to
    decode_s: float = 0.0002
    chunk_s: float = 0.0025
    pair_s: float = 4e-8  # of a chunk, for each pair of tokens

    def step_s(self, work: StepWork) -> float:
        tokens = work.num_tokens
        tiled = math.ceil(tokens / self.tile) * self.tile
        total_s = self.fixed_s + self.token_s * (
            (1.0 - self.tile_share) * tokens + self.tile_share * tiled
        )
        total_s += self.sample_s * work.num_samples + self.decode_s * work.num_decodes
        total_s += self.context_s * work.decode_context
        _, pairs = work.prompts()
        return total_s + self.chunk_s * len(work.chunks) + self.pair_s * pairs


def measured(
    truth: Truth, sigma: float, seed: int = 0, limits: LoadedLimits = LIMITS, repeats: int = 4
) -> list[Point]:
    """Every experiment within the limits, with log-normal noise."""
    chance = np.random.default_rng(seed)
    maker = PlanMaker(limits.block_size, limits.max_slots)

    def point(one: Experiment) -> Point:
        work = maker.work(one.rows)
        factors = np.exp(sigma * chance.standard_normal(repeats))
        return Point(one.kind, work, tuple((truth.step_s(work) * factors).tolist()))

    return [point(one) for one in experiments(limits)]
