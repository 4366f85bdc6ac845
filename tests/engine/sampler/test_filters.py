"""Top-k, top-p and min-p against full sorts, with narrow and with full looks."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.engine.sampler import filters as module
from daemon.engine.sampler.filters import Filters, best_tokens, draw_filtered
from daemon.engine.sampler.noise import UInts, keys
from daemon.state.request import SamplingParams
from tests.engine.sampler.reference import distribution

LIKELY = 20 / 512
"""A token of this chance is among 512 draws: but for one time in 10 ** 9."""


def kept_by(row: torch.Tensor, sampling: SamplingParams, draws: int = 512) -> set[int]:
    """Tokens that come out of many draws."""
    scaled = ((row - row.max()) / sampling.temperature).float().expand(draws, -1).contiguous()
    filters = Filters(
        torch.full((draws,), sampling.top_k),
        torch.full((draws,), sampling.top_p),
        torch.full((draws,), sampling.min_p),
    )
    return set(draw_filtered(scaled, filters, noise_of(draws)).tolist())


def noise_of(draws: int) -> UInts:
    return keys(np.arange(draws, dtype=np.uint64), np.arange(draws))


@settings(max_examples=150, deadline=None)
@example(levels=[2, 2, 2, 3], top_k=2, top_p=0.3, min_p=0.0, temperature=3.0, width=2)
@given(
    levels=st.lists(st.integers(0, 8), min_size=2, max_size=40),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.77, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.26, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    width=st.sampled_from([1, 2, 8, 128]),
)
def test_what_stays_is_what_a_full_sort_keeps(
    levels: list[int],
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
    width: int,
) -> None:
    row = torch.tensor(levels, dtype=torch.float32) / 3  # many ties
    top_k = 0 if top_k >= len(levels) else top_k
    sampling = SamplingParams(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WIDTH", width)
        got = kept_by(row, sampling)
    expected = distribution(row.double().numpy(), sampling)
    borders = {  # where rounding may say either, both are right
        nudged
        for factor in (1 - 1e-6, 1 + 1e-6)
        for nudged in np.flatnonzero(
            distribution(
                row.double().numpy(),
                SamplingParams(
                    temperature, top_k=top_k, top_p=top_p * factor, min_p=min(min_p * factor, 1.0)
                )
                if top_p < 1
                else sampling,
            )
        )
    } ^ set(np.flatnonzero(expected))
    large = {int(t) for t in np.flatnonzero(expected > LIKELY)}
    assert large - borders <= got <= set(np.flatnonzero(expected).tolist()) | borders


@pytest.mark.parametrize("vocab", [49_152, 50_257, 4_099])
@pytest.mark.parametrize("count", [1, 20, 128, 2048])
def test_best_tokens_are_topk(vocab: int, count: int) -> None:
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab))
    values, ids = best_tokens(logits, count)
    assert torch.equal(values, logits.topk(count).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row.tolist())) == count for row in ids)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.99])
@pytest.mark.parametrize("top_k", [0, 50, 5000])
def test_narrow_and_full_looks_draw_the_same(scale: float, top_p: float, top_k: int) -> None:
    logits = torch.randn(16, 20_000, generator=torch.Generator().manual_seed(3)) * scale
    logits -= logits.amax(-1, keepdim=True)
    filters = Filters(torch.full((16,), top_k), torch.full((16,), top_p), torch.zeros(16))
    noise = noise_of(16)
    got = draw_filtered(logits, filters, noise)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WIDTH", 1)
        assert torch.equal(got, draw_filtered(logits, filters, noise))
