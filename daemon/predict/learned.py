"""What predictors that learn have in common: a store, a model of it, and a calibrated band."""

from typing import Protocol

from daemon.predict.calibration import Calibration
from daemon.predict.conditional_mean import ConditionalMean
from daemon.predict.prediction import Asked, Prediction
from daemon.predict.store import VectorStore


class Model(Protocol):
    """Tells lengths from what a store remembers; made with that store."""

    @property
    def declared(self) -> str:
        """Its name and its error in a sentence."""

    def guess(self, asked: Asked) -> float:
        """Output tokens (> 0); asked only when something is stored."""

    def learn(self) -> None:
        """The store has one row more, or was just opened."""


class Learned:
    """A model as a Predictor: the conditional mean until `LEAST` requests finished.

    A finished request is first guessed once more, unseen, so that the band says how far guesses
    are off on requests that the model has not learned from; then it is stored and learned.
    """

    LEAST = 64

    def __init__(self, store: VectorStore, model: Model) -> None:
        self.declared = model.declared
        self._store = store
        self._model = model
        self._mean = ConditionalMean()
        self._mean.recall(store)
        self._calibration = Calibration()
        store.signed_by(model.declared)
        rows = store.rows
        for guess, truth in zip(rows["guess"].tolist(), rows["num_tokens"].tolist(), strict=True):
            if guess:
                self._calibration.observe(guess, truth)

    def predict(self, asked: Asked) -> Prediction:
        """The model's guess and its band."""
        if len(self._store) < self.LEAST:
            return self._mean.predict(asked)
        return self._calibration.band(self._guess(asked), asked.max_tokens)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Calibrate, store, learn."""
        guess = 0.0
        if len(self._store) >= self.LEAST:
            guess = self._guess(asked)
            self._calibration.observe(guess, num_tokens)
        self._store.add(asked, num_tokens, guess)
        self._mean.observe(asked, num_tokens)
        self._model.learn()

    def _guess(self, asked: Asked) -> float:
        """At least a token, and within what was asked for: nobody answers more."""
        guess = max(1.0, self._model.guess(asked))
        return min(guess, asked.max_tokens) if asked.max_tokens > 0 else guess
