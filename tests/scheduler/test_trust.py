"""Predictions are followed while they order answers better than chance."""

import numpy as np

from daemon.scheduler.trust import PredictorTrust


def judged(sign: float, sigma: float, seed: int = 0) -> PredictorTrust:
    """After 200 answers whose log length is predicted as sign * truth + noise."""
    chance = np.random.default_rng(seed)
    trust = PredictorTrust()
    for log_true in chance.normal(4.0, 1.0, 200).tolist():
        log_predicted = 4.0 + sign * (log_true - 4.0) + sigma * chance.standard_normal()
        trust.observe(max(1, round(np.exp(log_predicted))), max(1, round(np.exp(log_true))))
    return trust


def test_good_predictions_are_followed_and_an_adversarys_are_not() -> None:
    assert judged(1.0, 0.0).in_order > 0.95
    assert judged(1.0, 0.5).holds
    assert not judged(-1.0, 0.0).holds
    assert not judged(0.0, 1.0).holds, "chance"


def test_trust_comes_back_with_good_predictions() -> None:
    trust = judged(-1.0, 0.0)
    for true in range(1, 60):
        trust.observe(2 * true, true)
    assert trust.holds


def test_state_comes_back() -> None:
    trust = judged(1.0, 1.0)
    again = PredictorTrust.restored(trust.state())
    for one in (trust, again):
        one.observe(5, 9)
        one.observe(50, 7)
    assert again.state() == trust.state()
