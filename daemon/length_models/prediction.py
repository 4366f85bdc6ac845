"""What a predictor is asked, and what it answers."""

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


class Asked(msgspec.Struct, frozen=True):
    """A request as predictors see it: counts and vectors, never text.

    Only a simulation knows `truth`, the output tokens; `chance` is its draw from the standard
    normal distribution. `guess` is filled in by whoever hands the request on to `observe`.
    """

    num_prompt_tokens: int
    max_tokens: int = 0  # 0: unknown
    features: Float32 | None = None  # [F]: cheap numbers of the text (features.py)
    vector: Float32 | None = None  # [D]: the text's embedding, of length 1
    truth: int = -1
    chance: float = 0.0
    guess: float = 0.0  # `Prediction.guess` of when it was asked about; 0: nothing was said

    def cuts(self, num_tokens: int) -> bool:
        """Whether an answer of so many tokens was ended by the limit: it would be longer."""
        return 0 < self.max_tokens <= num_tokens


class Prediction(msgspec.Struct, frozen=True):
    """Output tokens of one answer: calibrated quantiles; all at least 1, in rising order."""

    middle: int  # the median: what schedulers order by
    high: int  # one answer in ten is longer
    guess: float = 0.0  # of the model, before it was calibrated; 0: there is none


class Predictor(Protocol):
    """Says how many output tokens a request will have, and learns from those that finish."""

    @property
    def declared(self) -> str:
        """Its name and its error in a sentence, for every report."""

    def predict(self, asked: Asked) -> Prediction:
        """The answer's length as far as it can be told."""

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """A request finished with so many output tokens; as many as it was allowed: or cut."""
