"""The oracle, which knows the answer: the bound of all predictors; for simulations alone."""

from daemon.length_models.prediction import Asked, Prediction


class Oracle:
    """A predictor that returns the truth."""

    declared = "oracle (no error)"

    def predict(self, asked: Asked) -> Prediction:
        """The truth."""
        return Prediction(asked.truth, asked.truth)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Learn nothing."""
