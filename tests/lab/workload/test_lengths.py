"""Named distributions against the figures published of them, over 20,000 draws."""

import numpy as np
import pytest

from daemon.lab.workload.length_distributions import DISTRIBUTIONS, SKEW_OUTPUT, Int32
from daemon.lab.workload.marginals import Bounded, whole

DRAWS = 20_000
TOLERANCE = 0.04  # of a published figure; 20,000 draws of a heavy tail are not closer

ECOSERVE = {  # Table 2: average, least, most; of input and of output
    "alpaca": ((19.31, 9, 2470), (58.41, 13, 292)),
    "bookcorpus": ((1952.11, 18, 2048), (681.2, 32, 1041)),
}
VIDUR = {  # Table 1: mean, median, p90; of prefill and of decode tokens
    "chat-1m": ((686, 417, 1678), (197, 139, 484)),
    "arxiv-4k": ((2588, 2730, 3702), (291, 167, 372)),
    "bwb-4k": ((1067, 1037, 1453), (1612, 1601, 2149)),
}
QUADRANTS = {"lpld": (False, False), "lphd": (False, True), "hpld": (True, False)}
QUADRANTS["hphd"] = (True, True)


def _drawn(name: str, count: int = DRAWS) -> tuple[Int32, Int32]:
    return DISTRIBUTIONS[name]().draw(count, np.random.default_rng(5))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_request_has_a_prompt_and_an_answer(name: str) -> None:
    for lengths in _drawn(name, 3000):
        assert lengths.shape == (3000,) and lengths.dtype == np.int32
        assert lengths.min() >= 1


@pytest.mark.parametrize("name", ECOSERVE)
def test_ecoserves_table_2(name: str) -> None:
    for lengths, (average, least, most) in zip(_drawn(name), ECOSERVE[name], strict=True):
        assert lengths.mean() == pytest.approx(average, rel=TOLERANCE)
        assert lengths.min() >= least and lengths.max() <= most


def test_bookcorpus_comes_in_chunks_of_2048() -> None:
    prompts, _ = _drawn("bookcorpus")
    assert (prompts == 2048).mean() == pytest.approx(0.906, abs=0.01)


@pytest.mark.parametrize("name", VIDUR)
def test_vidurs_table_1(name: str) -> None:
    drawn = _drawn(name)
    assert (drawn[0] + drawn[1]).max() <= 4096
    for lengths, figures in zip(drawn, VIDUR[name], strict=True):
        found = (lengths.mean(), np.median(lengths), np.quantile(lengths, 0.9))
        assert found == pytest.approx(figures, rel=TOLERANCE)


def test_sharegpt_repeats_the_file_it_was_measured_on() -> None:
    prompts, outputs = _drawn("sharegpt")
    assert prompts.mean() == pytest.approx(245.7, rel=TOLERANCE)
    assert outputs.mean() == pytest.approx(325.6, rel=TOLERANCE)
    assert np.median(prompts) == pytest.approx(35, rel=TOLERANCE)
    assert np.median(outputs) == pytest.approx(286, rel=TOLERANCE)
    assert np.quantile(prompts, 0.95) == pytest.approx(1423, rel=2 * TOLERANCE)
    assert np.quantile(outputs, 0.95) == pytest.approx(839, rel=TOLERANCE)
    ranks = (np.argsort(np.argsort(lengths)) for lengths in (prompts, outputs))
    assert np.corrcoef(*ranks)[0, 1] == pytest.approx(0.138, abs=0.02)
    assert (prompts.astype(int) + outputs).max() <= 4096


def test_skew_is_short_nine_times_in_ten() -> None:
    prompts, outputs = _drawn("skew")
    short = outputs[outputs <= 64]
    long = outputs[outputs > 64]
    assert short.size / DRAWS == pytest.approx(0.9, abs=0.01)
    assert (short.min(), short.max(), long.min(), long.max()) == (16, 64, 800, 1500)
    assert short.mean() == pytest.approx(40, rel=0.02)
    assert long.mean() == pytest.approx(1150, rel=0.02)
    assert prompts.mean() == pytest.approx(245.7, rel=TOLERANCE)


def test_skew_gives_every_length_its_share() -> None:
    outputs = whole(SKEW_OUTPUT(np.random.default_rng(1).standard_normal(200_000)))
    counts = np.bincount(outputs.astype(int), minlength=1501)[16:65]
    assert counts / 200_000 == pytest.approx(np.full(49, 0.9 / 49), rel=0.1)


def test_splitwises_code_medians() -> None:
    prompts, outputs = _drawn("splitwise-code")
    assert np.median(prompts) == pytest.approx(1500, rel=TOLERANCE)
    assert np.median(outputs) == pytest.approx(13, abs=1)


@pytest.mark.parametrize("name", QUADRANTS)
def test_tetriinfers_quadrants(name: str) -> None:
    heavy_prompt, heavy_output = QUADRANTS[name]
    prompts, outputs = _drawn(name, 3000)
    assert ((prompts > 512) == heavy_prompt).all()
    assert ((outputs > 128) == heavy_output).all()


def test_the_farther_bound_is_where_the_most_extreme_request_is_expected() -> None:
    shape = Bounded(19.31, 9, 2470, 52_000)
    mu, sigma = shape.fit()
    assert 9 + np.exp(mu + sigma**2 / 2) == pytest.approx(19.31)
    beyond = np.random.default_rng(2).standard_normal(520_000) * sigma + mu > np.log(2470 - 9)
    assert 2 <= beyond.sum() <= 22  # ten samples of 52,000, one expected in each
