"""Models that learn from what they see."""

import random

import pytest

from daemon.cost.finish_rate import FinishRate
from daemon.cost.step_time import StepTimeModel


def test_an_affine_law_is_learned() -> None:
    chance = random.Random(1)
    model = StepTimeModel(0.5)
    for _ in range(2000):
        tokens = chance.randint(1, 512)
        model.observe(tokens, 0.004 + 2e-5 * tokens)
    assert model.per_token_s == pytest.approx(2e-5, rel=0.01)
    assert model.predict_s(100) == pytest.approx(0.006, rel=0.01)


def test_a_changed_machine_is_learned_anew() -> None:
    model = StepTimeModel()
    for elapsed_s in (0.01, 0.05):
        for _ in range(300):
            model.observe(8, elapsed_s)
    assert model.mean_s == pytest.approx(0.05, rel=0.01)


def test_nothing_seen_predicts_nothing() -> None:
    assert StepTimeModel().predict_s(10) == 0.0
    assert StepTimeModel(0.02).mean_s == 0.02


def test_the_rate_of_finishes() -> None:
    rate = FinishRate()
    assert rate.wait_s(3) == 1.0, "nothing is known"
    for second in range(100):
        rate.observe(second * 2.0, 4)
    assert rate.wait_s(3) == pytest.approx(1.5)


def test_idle_time_is_left_out() -> None:
    rate = FinishRate()
    rate.resume(5.0)
    for start_s in (0.0, 1000.0, 2000.0):
        rate.resume(start_s)
        for second in range(5):
            rate.observe(start_s + second, 1)
    assert rate.wait_s(1) <= 1.0
