"""Those that know the truth: the oracle says it, noise spreads it, the adversary reverses it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.length_models.adversary import Adversary
from daemon.length_models.noisy import Noisy
from daemon.length_models.oracle import Oracle
from daemon.length_models.prediction import Asked, Prediction


def asked(truth: int, chance: float = 0.0) -> Asked:
    return Asked(5, truth=truth, chance=chance)


def test_the_oracle_knows_and_never_learns() -> None:
    oracle = Oracle()
    oracle.observe(asked(10), 1000)
    assert oracle.predict(asked(7, 2.0)) == Prediction(7, 7)


def test_noise_multiplies_the_truth() -> None:
    """Its logarithms spread by sigma around the truth's; half the predictions are too long."""
    noisy = Noisy(0.4)
    draws = np.random.default_rng(3).standard_normal(20_000)
    said = [noisy.predict(asked(10_000, float(draw))) for draw in draws]
    logs = np.log([one.middle for one in said])
    assert logs.std() == pytest.approx(0.4, rel=0.02)
    assert np.median(logs) == pytest.approx(math.log(10_000), abs=0.02)
    assert noisy.predict(asked(100, 1.0)).middle == round(100 * math.exp(0.4))
    assert noisy.predict(asked(1, -9.0)) == Prediction(1, 1), "at least one token"
    assert Noisy(0.0).predict(asked(123, 3.0)) == Prediction(123, 123)


def test_a_tenth_of_the_truths_lies_beyond_the_noise() -> None:
    noisy = Noisy(0.4)
    draws = np.random.default_rng(4).standard_normal(20_000)
    said = [noisy.predict(asked(10_000, float(draw))) for draw in draws]
    assert np.mean([one.high < 10_000 for one in said]) == pytest.approx(0.1, abs=0.01)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_the_adversary_never_orders_two_answers_rightly(one: int, other: int) -> None:
    adversary = Adversary()
    shorter, longer = sorted((one, other))
    said_of_shorter = adversary.predict(asked(shorter)).middle
    said_of_longer = adversary.predict(asked(longer)).middle
    assert said_of_shorter >= said_of_longer
    if longer >= 2 * shorter and longer <= 2 * Adversary.MIRROR:
        assert said_of_shorter > said_of_longer


def test_the_adversary_is_sure_of_itself() -> None:
    assert Adversary().predict(asked(16)) == Prediction(4096, 4096)
    assert Adversary().predict(asked(1024)) == Prediction(64, 64)
