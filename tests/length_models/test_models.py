"""The models' mathematics: boosted trees and the network's gradients."""

import numpy as np
import pytest

from daemon.length_models.boosting import BoostedTrees
from daemon.length_models.network import Network
from daemon.length_models.prediction import Bool, Float32


def whole(num_rows: int) -> Bool:
    """No row is a bound."""
    return np.zeros(num_rows, np.bool_)


def test_trees_fit_steps_and_their_products() -> None:
    chance = np.random.default_rng(0)
    x = chance.random((1000, 4)).astype(np.float32)
    y = (2.0 * (x[:, 0] > 0.5) + 3.0 * (x[:, 1] > 0.3) * (x[:, 2] > 0.6)).astype(np.float32)
    trees = BoostedTrees()
    trees.fit(x, y, whole(1000))
    fresh = chance.random((300, 4)).astype(np.float32)
    truth = 2.0 * (fresh[:, 0] > 0.5) + 3.0 * (fresh[:, 1] > 0.3) * (fresh[:, 2] > 0.6)
    said = np.array([trees(row) for row in fresh])
    assert np.mean((said - truth) ** 2) < 0.1 * truth.var()


def test_trees_of_constant_columns_say_the_mean() -> None:
    trees = BoostedTrees()
    trees.fit(np.ones((5, 3), np.float32), np.arange(5, dtype=np.float32), whole(5))
    assert trees(np.ones(3, np.float32)) == pytest.approx(2.0)
    trees.fit(np.ones((1, 3), np.float32), np.array([7.0], np.float32), whole(1))
    assert trees(np.zeros(3, np.float32)) == pytest.approx(7.0)


def test_trees_take_values_that_were_never_seen() -> None:
    x = np.arange(100, dtype=np.float32)[:, None]
    trees = BoostedTrees()
    trees.fit(x, x[:, 0], whole(100))
    far, farther = trees(np.array([1e6], np.float32)), trees(np.array([1e9], np.float32))
    assert far == farther
    assert 80.0 < far < 100.0
    assert trees(np.array([-1e6], np.float32)) < 20.0


def test_trees_may_say_more_than_a_bound_and_not_less() -> None:
    """Left of 50 all is 10 but for bounds of 2; right of it all are bounds of 30."""
    x = np.arange(200, dtype=np.float32)[:, None] / 2.0
    left, odd = x[:, 0] < 50.0, np.arange(200) % 2 == 1
    y = np.where(left, np.where(odd, 2.0, 10.0), 30.0).astype(np.float32)
    trees = BoostedTrees(num_trees=200)
    trees.fit(x, y, ~left | odd)
    assert trees(np.array([20.0], np.float32)) == pytest.approx(10.0, abs=1.0)
    assert trees(np.array([80.0], np.float32)) == pytest.approx(30.0, abs=1.5)


class Wide(Network):
    """With weights that can be read and pushed."""

    def loss(self, x: Float32, y: Float32) -> float:
        return float(((self(x) - y) ** 2).mean() / 2)


def test_a_step_goes_down_the_numerical_gradient() -> None:
    """The first step of Adam is the sign of the gradient, times the rate."""
    chance = np.random.default_rng(1)
    x = chance.normal(size=(16, 3)).astype(np.float32)
    y = chance.normal(size=(16, 1)).astype(np.float32)
    network = Wide([3, 5, 1], seed=3, rate=1e-3)
    for _ in range(50):  # off the zeros of the last layer
        network.step(x, lambda out: (out - y) / x.shape[0])
    before = [weight.copy() for weight in network._weights]
    slopes = []
    for weight in network._weights:
        numeric = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            kept = weight[place]
            losses = []
            for change in (1e-2, -1e-2):
                weight[place] = kept + change
                losses.append(network.loss(x, y))
            weight[place] = kept
            numeric[place] = (losses[0] - losses[1]) / 2e-2
        slopes.append(numeric)
    network._means = [np.zeros_like(weight) for weight in before]
    network._squares = [np.zeros_like(weight) for weight in before]
    network._num_steps = 0
    network.step(x, lambda out: (out - y) / x.shape[0])
    for old, new, slope in zip(before, network._weights, slopes, strict=True):
        clear = np.abs(slope) > 0.2 * np.abs(slope).max()
        assert np.abs(slope).max() > 1e-4
        assert np.allclose((new - old)[clear], -1e-3 * np.sign(slope)[clear], rtol=0.01)


def test_a_network_fits_a_product() -> None:
    chance = np.random.default_rng(2)
    x = chance.uniform(-1.0, 1.0, (512, 2)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:]).astype(np.float32)
    network = Network([2, 32, 1], rate=5e-3)
    for _ in range(800):
        network.step(x, lambda out: (out - y) / x.shape[0])
    assert float(((network(x) - y) ** 2).mean()) < 0.05 * float(y.var())
