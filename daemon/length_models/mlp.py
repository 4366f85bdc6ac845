"""The MLP regressor on embedding and features: the fallback of ALISE's Algorithm 1."""

import math

import numpy as np

from daemon.length_models.inputs import log_lengths
from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.store import Rows, VectorStore, cut_short
from daemon.length_models.trained import Trained

CENTRE = math.log(200.0)
"""Offset of the outputs, which are logarithms of lengths: zero is a sensible beginning."""


class Mlp:
    """One hidden layer; squared error of the logarithm of the length, large errors counting less
    (Huber's loss), and nothing where an answer was cut and is expected to be longer.
    """

    HIDDEN = 64
    HUBER = 1.0
    DOUBT = 3000.0
    declared = "mlp (regressor on embedding and features; error calibrated on recent answers)"

    def __init__(self, store: VectorStore, seed: int = 0) -> None:
        self._trained = Trained(store, self._slopes, (self.HIDDEN, 1), self.DOUBT, seed)

    def guess(self, asked: Asked) -> float:
        """The length that the network predicts."""
        return math.exp(min(CENTRE + float(self._trained(asked)[0]), 20.0))

    def learn(self) -> None:
        """Train for some steps more."""
        self._trained.learn()

    def _slopes(self, rows: Rows, outputs: Float32) -> Float32:
        errors: Float32 = outputs - (log_lengths(rows) - np.float32(CENTRE))[:, None]
        errors = errors.clip(-self.HUBER, np.where(cut_short(rows), 0.0, self.HUBER)[:, None])
        errors /= rows.size
        return errors
