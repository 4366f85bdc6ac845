"""The interface of predictors: a request as they see it, and their prediction."""

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Asked(msgspec.Struct, frozen=True):
    """A request as predictors see it: counts and vectors, never text.

    Only a simulation knows `truth`, the output tokens; `chance` is its sample of the standard
    normal distribution. The caller of `observe` fills in `guess`.
    """

    num_prompt_tokens: int
    max_tokens: int = 0  # 0: unknown
    features: Float32 | None = None  # [F]: cheap numbers of the text (features.py)
    vector: Float32 | None = None  # [D]: the text's embedding, of length 1
    truth: int = -1
    chance: float = 0.0
    guess: float = 0.0  # `Prediction.guess` made for it; 0: none

    def cuts(self, num_tokens: int) -> bool:
        """Whether the limit ended an answer of `num_tokens`: it would be longer."""
        return 0 < self.max_tokens <= num_tokens


class Prediction(msgspec.Struct, frozen=True):
    """Output tokens of one answer: calibrated quantiles; all at least 1, in rising order."""

    middle: int  # the median: what schedulers order by
    high: int  # one answer in ten is longer
    guess: float = 0.0  # of the model, before it was calibrated; 0: there is none


class Predictor(Protocol):
    """Predicts a request's number of output tokens, and learns from finished requests."""

    @property
    def declared(self) -> str:
        """Its name and its error in a sentence, for every report."""

    def predict(self, asked: Asked) -> Prediction:
        """Predict the answer's length."""

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Learn from a request that finished with `num_tokens`; at its limit it may be cut."""
