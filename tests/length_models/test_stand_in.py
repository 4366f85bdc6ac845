"""The stand-in for a predictor that reads: as right as is stated, on any lengths."""

import numpy as np
import pytest

from benchmarks.predictors import rank_correlation
from daemon.length_models.prediction import Asked
from daemon.length_models.registry import predictor_without_text
from daemon.length_models.stand_in import StandIn


@pytest.mark.parametrize("spread", [0.5, 1.5])
@pytest.mark.parametrize("rank", [0.3, 0.65, 0.9])
def test_it_orders_answers_as_well_as_is_stated_and_is_calibrated(
    rank: float, spread: float
) -> None:
    chance = np.random.default_rng(7)
    truth = (200 * np.exp(spread * chance.standard_normal(4000))).astype(int) + 1
    predictor = StandIn(rank)
    said = []
    for length, draw in zip(truth.tolist(), chance.standard_normal(4000).tolist(), strict=True):
        asked = Asked(10, truth=length, chance=draw)
        said.append(predictor.predict(asked))
        predictor.observe(asked, length)
    middle, high, late = (
        np.array([one.middle for one in said[1000:]], np.float64),
        np.array([one.high for one in said[1000:]], np.float64),
        truth[1000:].astype(np.float64),
    )
    assert rank_correlation(middle, late) == pytest.approx(rank, abs=0.04)
    assert (late < middle).mean() == pytest.approx(0.5, abs=0.03)
    assert (late > high).mean() == pytest.approx(0.1, abs=0.02)


def test_it_forgets_what_is_old() -> None:
    predictor = StandIn(0.65)
    for length in [1000] * StandIn.WINDOW + [10] * StandIn.WINDOW:
        predictor.observe(Asked(5, truth=length), length)
    assert predictor.predict(Asked(5, truth=10)).high == 10


def test_it_stands_for_features_where_there_is_no_text() -> None:
    assert isinstance(predictor_without_text("features"), StandIn)
    mean = predictor_without_text("mean")
    assert mean is not None and mean.declared.startswith("mean")
    assert predictor_without_text("none") is None
