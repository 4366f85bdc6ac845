"""A small feed-forward network and its training, in numpy."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from daemon.length_models.prediction import Float32

Slope = Callable[[Float32], Float32]
"""From outputs [N, O] to the gradient of the mean loss by them, [N, O]."""


class Network:
    """Linear layers with rectifiers between them, trained by AdamW (Loshchilov and Hutter 2019)."""

    MEMORY = 0.9
    SQUARE_MEMORY = 0.99
    TINY = 1e-8

    def __init__(self, sizes: Sequence[int], seed: int = 0, rate: float = 1e-3) -> None:
        """`sizes`: of inputs, hidden layers and outputs; the last layer begins as zeros."""
        chance = np.random.default_rng(seed)
        self._rate = rate
        self._weights: list[Float32] = []
        for fan_in, fan_out in pairwise(sizes):
            scale = np.sqrt(2.0 / fan_in) if len(self._weights) < len(sizes) - 2 else 0.0
            initial = chance.standard_normal((fan_in + 1, fan_out)) * scale
            initial[-1] = 0.0  # the bias
            self._weights.append(initial.astype(np.float32))
        self._means = [np.zeros_like(weight) for weight in self._weights]
        self._squares = [np.zeros_like(weight) for weight in self._weights]
        self._num_steps = 0

    def __call__(self, inputs: Float32) -> Float32:
        """[N, I] to [N, O]."""
        return self._activations(inputs)[-1]

    def step(self, inputs: Float32, slope: Slope, decay: float = 0.0) -> None:
        """One step down the loss of these rows [N, I]; weights shrink by `decay` times the rate."""
        activations = self._activations(inputs)
        gradient = slope(activations[-1])
        self._num_steps += 1
        for layer in reversed(range(len(self._weights))):
            below, weight = activations[layer], self._weights[layer]
            change = np.vstack([below.T @ gradient, gradient.sum(axis=0)])
            if layer:
                gradient = (gradient @ weight[:-1].T) * (below > 0.0)
            self._descend(layer, change, decay)

    def _activations(self, inputs: Float32) -> list[Float32]:
        """Inputs of every layer, then the outputs."""
        activations = [inputs]
        for weight in self._weights[:-1]:
            linear = activations[-1] @ weight[:-1] + weight[-1]
            activations.append(np.maximum(linear, 0.0))
        activations.append(activations[-1] @ self._weights[-1][:-1] + self._weights[-1][-1])
        return activations

    def _descend(self, layer: int, change: Float32, decay: float) -> None:
        mean, square, weight = self._means[layer], self._squares[layer], self._weights[layer]
        mean += (1.0 - self.MEMORY) * (change - mean)
        square += (1.0 - self.SQUARE_MEMORY) * (change * change - square)
        mean_scale = 1.0 / (1.0 - self.MEMORY**self._num_steps)
        square_scale = 1.0 / (1.0 - self.SQUARE_MEMORY**self._num_steps)
        weight[:-1] *= max(0.0, 1.0 - self._rate * decay)
        weight -= self._rate * mean_scale * mean / (np.sqrt(square_scale * square) + self.TINY)
