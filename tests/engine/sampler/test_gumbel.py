"""The draw itself: its distribution, and what it depends on."""

import numpy as np
import pytest
import torch

from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.sampler_ops import CpuSamplerOps
from daemon.engine.cpu.team import Team
from daemon.engine.sampler import Sampler
from daemon.engine.sampler.columns import SlotColumns
from daemon.engine.sampler.gumbel import sample, sample_listed
from daemon.engine.sampler.noise import BLOCK, keys, noise
from daemon.engine.sampler.ops import SamplerOps, TorchSamplerOps
from daemon.state.request import SamplingParams
from tests.engine.sampler.reference import distribution

VOCAB = 97


def logits_of(seed: int, rows: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def both(vocab: int) -> tuple[SamplerOps, SamplerOps]:
    """Sampling by torch, and compiled ones."""
    return TorchSamplerOps(vocab), CpuSamplerOps(vocab, Team(run_program))


@pytest.mark.parametrize("columns", [1, 5, BLOCK, 1000, 50_257])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 30.0])
def test_the_best_score_of_all_is_drawn(columns: int, scale: float) -> None:
    """As the plainest look over all tokens finds it; ties of logits, and some that cannot be."""
    logits = (logits_of(columns, 6, columns, scale) * 4).round() / 4
    logits[:, 1::3] = -torch.inf
    places = keys(np.arange(6, dtype=np.uint64), np.arange(6))
    depths = logits.amax(1, keepdim=True) - logits
    scores = noise(places[:, None], np.arange(columns)) - depths.numpy()
    expected = scores.argmax(1).tolist()
    assert sample(depths, places).tolist() == expected
    shuffled = torch.randperm(columns, generator=torch.Generator().manual_seed(1)).expand(6, -1)
    listed = sample_listed(depths.gather(1, shuffled), shuffled, places)
    assert listed.tolist() == expected
    columns_of = SlotColumns(columns)
    for seed in range(6):
        columns_of.join(seed, SamplingParams(seed=seed), False)
    params = columns_of.rows(np.arange(6))
    for ops in both(columns):
        assert ops.choose(logits, params, np.arange(6)).tolist() == [expected, [0] * 6]


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
@pytest.mark.parametrize("compiled", [False, True])
def test_frequencies_are_the_distribution(sampling: SamplingParams, compiled: bool) -> None:
    """Rare tokens, too: their counts have one more cell, all together."""
    row = logits_of(1, 1)
    draws = 20_000
    sampler = Sampler(VOCAB, "cpu", ops=both(VOCAB)[compiled])
    sampler.join(0, sampling, 1)
    result = sampler.sample(row.expand(draws, -1), [0] * draws, np.arange(1, draws + 1))
    counts = np.bincount(result.tokens.numpy(), minlength=VOCAB)
    expected = distribution(row[0].double().numpy(), sampling) * draws
    assert (counts[expected == 0] == 0).all()
    big = expected > 5
    counts = np.append(counts[big], counts[~big].sum())
    expected = np.append(expected[big], max(expected[~big].sum(), 1e-9))
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = big.sum()
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("compiled", [False, True])
def test_seeds_draw_the_distribution_too(compiled: bool) -> None:
    """A seed each, at one position, of many tokens: each tenth of them its share."""
    vocab, draws = 4000, 2000
    row = torch.linspace(6, 0, vocab)
    columns = SlotColumns(vocab)
    columns.join(0, SamplingParams(), False)
    params = columns.rows(np.zeros(draws, np.int64))
    params["seed"] = np.arange(draws)
    ops = both(vocab)[compiled]
    drawn = ops.choose(row.expand(draws, -1).contiguous(), params, np.full(draws, 9))[0]
    counts = np.bincount(drawn.numpy() // 400, minlength=10)
    expected = row.double().softmax(0).view(10, -1).sum(1).numpy() * draws
    assert ((counts - expected) ** 2 / expected).sum() < 28  # 9 degrees: p = 0.001


def test_what_rounds_differently_draws_the_same() -> None:
    """But where two scores nearly tie: of 3,000 draws a few at noise of 1e-4."""
    vocab, draws = 3000, 3000
    row = logits_of(5, 1, vocab)
    columns = SlotColumns(vocab)
    columns.join(0, SamplingParams(), False)
    params = columns.rows(np.zeros(draws, np.int64))
    params["seed"] = np.arange(draws)
    ops, positions = both(vocab)[1], np.full(draws, 9)
    first = ops.choose(row.expand(draws, -1), params, positions)[0]
    noisy = row + logits_of(6, draws, vocab, 1e-4)
    different = (ops.choose(noisy, params, positions)[0] != first).nonzero().flatten()
    assert len(different) < 6
    places = keys(params["seed"], positions)[different.numpy()]
    scores = noise(places[:, None], np.arange(vocab)) + row.numpy()
    two = np.sort(scores, 1)[:, -2:]
    assert (two[:, 1] - two[:, 0] < 1e-3).all()


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
