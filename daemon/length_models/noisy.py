"""The truth with a declared error: for simulations of traces that have lengths and no text."""

import math

from daemon.length_models.calibration import ordered
from daemon.length_models.errors import PredictorError
from daemon.length_models.prediction import Asked, Prediction

TAIL_Z = 1.2815515655446004
"""The standard normal distribution's 90 % quantile."""


class Noisy:
    """The truth with lognormal error: truth * exp(sigma * z)."""

    def __init__(self, sigma: float) -> None:
        if not 0.0 <= sigma < math.inf:
            raise PredictorError(f"noisy:SIGMA needs a number from 0 on, got {sigma}")
        self._sigma = sigma
        self.declared = f"noisy:{sigma:g} (truth * lognormal error, sigma {sigma:g})"

    def predict(self, asked: Asked) -> Prediction:
        """The truth times the error of `chance`; the band is that error's."""
        said = asked.truth * math.exp(self._sigma * asked.chance)
        spread = math.exp(self._sigma * TAIL_Z)
        return ordered(said, said * spread)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Learn nothing."""
