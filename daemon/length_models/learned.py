"""The common part of predictors that learn: a store, a model of it, and a calibrated band."""

from typing import Protocol

import msgspec
import numpy as np

from daemon.length_models.calibration import Calibration
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.prediction import Asked, Prediction
from daemon.length_models.store import VectorStore, cut_short


class LengthModel(Protocol):
    """A model that predicts lengths from a store's rows; made with that store."""

    @property
    def declared(self) -> str:
        """Its name and its error in a sentence."""

    def guess(self, asked: Asked) -> float:
        """Predict output tokens (> 0); asked only when something is stored."""

    def learn(self) -> None:
        """Learn, as the store has one row more or was just opened."""


class Learned:
    """A model as a Predictor: the conditional mean until `LEAST` whole answers are known.

    A finished request first calibrates the guess that was made for it, so that the band shows the
    error on requests that the model has not learned from; then it is stored and learned. Of an
    answer that was cut, all learn only that it is longer.
    """

    LEAST = 64

    def __init__(self, store: VectorStore, model: LengthModel) -> None:
        self.declared = model.declared
        self._store = store
        self._model = model
        self._mean = ConditionalMean()
        self._mean.recall(store)
        self._calibration = Calibration()
        store.signed_by(model.declared)
        rows = store.rows
        cut = cut_short(rows)
        self._num_whole = int(np.count_nonzero(~cut))
        columns = (rows["guess"], rows["num_tokens"], cut)
        for guess, *truth in zip(*(column.tolist() for column in columns), strict=True):
            if guess:
                self._calibration.observe(guess, *truth)

    def predict(self, asked: Asked) -> Prediction:
        """The model's guess and its band."""
        if min(len(self._store), self._num_whole) < self.LEAST:
            return self._mean.predict(asked)
        guess = self._guess(asked)
        return msgspec.structs.replace(self._calibration.band(guess, asked.max_tokens), guess=guess)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Calibrate, store, learn."""
        cut = asked.cuts(num_tokens)
        if asked.guess:
            self._calibration.observe(asked.guess, num_tokens, cut)
        self._num_whole += not cut
        self._store.add(asked, num_tokens)
        self._mean.observe(asked, num_tokens)
        self._model.learn()

    def _guess(self, asked: Asked) -> float:
        """The model's guess: at least a token, and at most the request's limit."""
        guess = max(1.0, self._model.guess(asked))
        return min(guess, asked.max_tokens) if asked.max_tokens > 0 else guess
