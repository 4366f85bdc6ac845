"""The oracle: it knows the answer. The bound that no predictor passes; for simulations alone."""

from daemon.length_models.prediction import Asked, Prediction


class Oracle:
    """Says the truth."""

    declared = "oracle (no error)"

    def predict(self, asked: Asked) -> Prediction:
        """The truth."""
        return Prediction(asked.truth, asked.truth)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """There is nothing to learn."""
