"""Quantiles: in order, within bounds, and right about as often as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.predict.calibration import TAIL, Calibration, ordered
from daemon.predict.prediction import Prediction
from daemon.predict.recent import Recent

positive = st.floats(1e-3, 1e7)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.integers(1, 20))
def test_recent_values_are_the_last_ones_in_order(values: list[int], size: int) -> None:
    recent = Recent(size)
    for value in values:
        recent.add(value)
    last = values[-size:]
    assert len(recent) == len(last)
    assert recent.mean == pytest.approx(sum(last) / len(last))
    assert min(last) <= recent.lower(TAIL) <= recent.upper(TAIL) <= max(last)
    assert sum(value < recent.lower(TAIL) for value in last) <= TAIL * (len(last) + 1)
    assert sum(value > recent.upper(TAIL) for value in last) <= TAIL * (len(last) + 1)


def test_ranks_are_those_of_split_conformal_prediction() -> None:
    recent = Recent(1000)
    for value in range(1, 20):
        recent.add(value)
    assert (recent.lower(0.1), recent.upper(0.1)) == (2.0, 18.0)


@given(positive, positive, positive, st.integers(0, 5000))
def test_quantiles_are_whole_in_order_and_within_the_limit(
    low: float, middle: float, high: float, max_tokens: int
) -> None:
    found = ordered(low, middle, high, max_tokens)
    assert 1 <= found.low <= found.middle <= found.high
    assert not max_tokens or found.high <= max_tokens


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 4000)), max_size=100),
    st.floats(1.0, 5000.0),
    st.integers(0, 5000),
)
def test_a_band_is_in_order_whatever_was_seen(
    seen: list[tuple[int, int]], guess: float, max_tokens: int
) -> None:
    calibration = Calibration()
    for said, truth in seen:
        calibration.observe(said, truth)
    band = calibration.band(guess, max_tokens)
    assert 1 <= band.low <= band.middle <= band.high
    assert band.middle == max(1, round(min(guess, max_tokens or guess)))


def test_before_enough_was_seen_the_band_is_wide() -> None:
    calibration = Calibration()
    for _ in range(Calibration.LEAST - 1):
        calibration.observe(100, 100)
    assert calibration.band(100) == Prediction(25, 100, 400)
    calibration.observe(100, 100)
    assert calibration.band(100) == Prediction(100, 100, 100)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_eight_in_ten_lie_within(spread: float) -> None:
    """For errors that grow as guesses shrink, in either class of guess."""
    chance = np.random.default_rng(5)
    calibration = Calibration()
    within: dict[int, list[bool]] = {20: [], 1000: []}
    for step in range(6000):
        guess = 20 if chance.random() < 0.5 else 1000
        sigma = spread * (2.0 if guess == 20 else 0.5)
        truth = max(1, round(guess * np.exp(sigma * chance.standard_normal())))
        if step > 1000:
            band = calibration.band(guess)
            within[guess].append(band.low <= truth <= band.high)
        calibration.observe(guess, truth)
    assert np.mean(within[20]) == pytest.approx(0.8, abs=0.06)
    assert np.mean(within[1000]) == pytest.approx(0.8, abs=0.03)


def test_a_drift_is_followed() -> None:
    calibration = Calibration()
    for truth in [100] * 500 + [300] * 500:
        calibration.observe(100, truth)
    assert calibration.band(100) == Prediction(100, 100, 300)
    assert calibration.band(110).high == 330
