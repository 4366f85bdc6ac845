"""The draw itself: its distribution, and what it depends on."""

import numpy as np
import pytest
import torch

from daemon.engine.sampler import Sampler
from daemon.engine.sampler.draws import draw, uniforms
from daemon.request import SamplingParams
from tests.engine.sampler.reference import distribution

VOCAB = 97


def logits_of(seed: int, rows: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def test_uniforms_are_uniform_and_differ_between_neighbours() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 200)
    positions = np.tile(np.arange(200), 200)
    values = uniforms(seeds, positions)
    assert len(np.unique(values)) == len(values)
    assert values.min() >= 0.0 and values.max() < 1.0
    counts, _ = np.histogram(values, bins=100, range=(0, 1))
    assert ((counts - 400.0) ** 2 / 400.0).sum() < 160  # chi-square, 99 degrees: 148 is p = 0.001
    square = values.reshape(200, 200)
    for a, b in ((square[1:], square[:-1]), (square[:, 1:], square[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_seeds_use_all_their_bits() -> None:
    seeds = np.uint64(1) << np.arange(64, dtype=np.uint64)
    assert len(np.unique(uniforms(seeds, np.zeros(64, np.int64)))) == 64


@pytest.mark.parametrize("columns", [5, 1000, 50_257])
def test_draw_inverts_the_running_sum(columns: int) -> None:
    weights = torch.rand(8, columns, generator=torch.Generator().manual_seed(columns))
    weights[:, ::3] = 0.0
    numbers = torch.linspace(0, 1 - 2**-48, 8, dtype=torch.float64)
    for row, (got, number) in enumerate(zip(draw(weights, numbers), numbers, strict=True)):
        sums = weights[row].double().cumsum(0)
        assert weights[row, got] > 0
        assert sums[got] >= number * sums[-1] * (1 - 1e-6)
        assert sums[got] - weights[row, got].double() <= number * sums[-1] * (1 + 1e-6) + 1e-9


def test_draw_never_takes_a_column_of_no_weight() -> None:
    weights = torch.zeros(4, 40_000)
    weights[torch.arange(4), torch.tensor([0, 255, 256, 39_999])] = 1e-30
    for number in (0.0, 0.5, 1 - 2**-48):
        tokens = draw(weights, torch.full((4,), number, dtype=torch.float64))
        assert tokens.tolist() == [0, 255, 256, 39_999]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02),
    ],
)
def test_frequencies_are_the_distribution(sampling: SamplingParams) -> None:
    row = logits_of(1, 1)
    draws = 20_000
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, sampling, 1)
    result = sampler.sample(row.expand(draws, -1), [0] * draws, np.arange(1, draws + 1))
    counts = np.bincount(result.tokens.numpy(), minlength=VOCAB)
    expected = distribution(row[0].double().numpy(), sampling) * draws
    assert (counts[expected == 0] == 0).all()
    big = expected > 5
    statistic = ((counts - expected)[big] ** 2 / expected[big]).sum()
    freedom = big.sum() - 1
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def test_a_token_does_not_depend_on_batch_order_or_slot() -> None:
    mixed = [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=5),
        SamplingParams(seed=6, top_p=0.9, temperature=2.0),
        SamplingParams(seed=7, top_k=3),
        SamplingParams(seed=8, min_p=0.05, logit_bias=((3, 2.0),)),
        SamplingParams(seed=9, top_p=0.999, temperature=5.0),
    ]
    logits = logits_of(2, len(mixed), vocab=5000)
    alone = []
    for row, sampling in enumerate(mixed):
        sampler = Sampler(5000, "cpu")
        sampler.join(0, sampling, 4)
        alone.append(int(sampler.sample(logits[row : row + 1], [0], [9]).tokens[0]))
    sampler = Sampler(5000, "cpu")
    slots = [40, 3, 17, 0, 8, 25]
    for slot, sampling in zip(slots, mixed, strict=True):
        sampler.join(slot, sampling, 4)
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 0, 4]):
        got = sampler.sample(logits[order], [slots[i] for i in order], [9] * len(order))
        assert got.tokens.tolist() == [alone[i] for i in order]


def test_seed_and_position_decide() -> None:
    logits = torch.zeros(1, 1000)
    sampler = Sampler(1000, "cpu")
    sampler.join(0, SamplingParams(seed=1), 1)
    sampler.join(1, SamplingParams(seed=2), 1)
    sampler.join(2, SamplingParams(seed=-1), 1)
    drawn = {
        (slot, position): int(sampler.sample(logits, [slot], [position]).tokens[0])
        for slot in (0, 1, 2)
        for position in range(1, 6)
    }
    assert len(set(drawn.values())) > 12
    assert all(
        int(sampler.sample(logits, [s], [p]).tokens[0]) == token for (s, p), token in drawn.items()
    )
