"""Quantiles: in order, within bounds, and right about as often as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.length_models.calibration import Calibration, ordered
from daemon.length_models.prediction import Prediction

positive = st.floats(1e-3, 1e7)


@given(positive, positive, st.integers(0, 5000))
def test_quantiles_are_whole_in_order_and_within_the_limit(
    middle: float, high: float, max_tokens: int
) -> None:
    found = ordered(middle, high, max_tokens)
    assert 1 <= found.middle <= found.high
    assert not max_tokens or found.high <= max_tokens


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 4000), st.booleans()), max_size=100),
    st.floats(1.0, 5000.0),
    st.integers(0, 5000),
)
def test_a_band_is_in_order_whatever_was_seen(
    seen: list[tuple[int, int, bool]], guess: float, max_tokens: int
) -> None:
    calibration = Calibration()
    for said, truth, cut in seen:
        calibration.observe(said, truth, cut)
    band = calibration.band(guess, max_tokens)
    assert 1 <= band.middle <= band.high
    assert not max_tokens or band.high <= max_tokens


def test_before_enough_was_seen_the_band_is_wide() -> None:
    calibration = Calibration()
    for _ in range(Calibration.LEAST - 1):
        calibration.observe(100, 100)
    assert calibration.band(100) == Prediction(100, 400)
    calibration.observe(100, 100)
    assert calibration.band(100) == Prediction(100, 100)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("bias", [0.3, 1.0, 3.0])
def test_half_lie_below_the_middle_and_a_tenth_above_the_high(spread: float, bias: float) -> None:
    """For errors that grow as guesses shrink, in either class of guess, and however wrong it is."""
    chance = np.random.default_rng(5)
    calibration = Calibration()
    found: dict[int, list[tuple[bool, bool]]] = {20: [], 1000: []}
    for step in range(3000):
        guess = 20 if chance.random() < 0.5 else 1000
        sigma = spread * (2.0 if guess == 20 else 0.5)
        truth = max(1, round(bias * guess * np.exp(sigma * chance.standard_normal())))
        if step > 1000:
            band = calibration.band(guess)
            found[guess].append((truth < band.middle, truth > band.middle, truth > band.high))
        calibration.observe(guess, truth)
    for guess, error in ((20, 0.08), (1000, 0.03)):
        below, above, far_above = np.mean(found[guess], axis=0)
        assert max(below, above) <= 0.5 + error
        assert far_above == pytest.approx(0.1, abs=error)


def test_a_drift_is_followed() -> None:
    calibration = Calibration()
    for truth in [100] * 500 + [300] * 500:
        calibration.observe(100, truth)
    assert calibration.band(100) == Prediction(300, 300)
    assert calibration.band(110) == Prediction(330, 330)


@pytest.mark.parametrize("truth", [30, 300])
def test_a_guess_that_is_always_wrong_by_a_factor_is_put_right(truth: int) -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(100, truth)
    assert calibration.band(100) == Prediction(truth, truth)


def test_answers_that_were_cut_say_that_they_were_longer() -> None:
    """Guessed at 100, half were cut at 50, the others had 100 to 199: all that is known of the
    cut ones is that they are like the others.
    """
    calibration = Calibration()
    for step in range(200):
        calibration.observe(100, 100 + step // 2, cut=False)
        calibration.observe(100, 50, cut=True)
    whole = Calibration()
    for step in range(200):
        whole.observe(100, 100 + step // 2)
        whole.observe(100, 100 + step // 2)
    found, expected = calibration.band(100), whole.band(100)
    assert found.middle == pytest.approx(expected.middle, abs=3)
    assert found.high == pytest.approx(expected.high, abs=3)


def test_where_all_were_cut_the_guess_stands() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.observe(16, 16, cut=True)
    assert calibration.band(16) == Prediction(16, 64)
    assert calibration.band(300, max_tokens=500) == Prediction(300, 500)
