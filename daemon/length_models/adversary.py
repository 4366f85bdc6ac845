"""The adversary: a predictor that is confidently wrong. For simulations and tests."""

from daemon.length_models.calibration import ordered
from daemon.length_models.prediction import Asked, Prediction


class Adversary:
    """Reverses the order of lengths: long for short answers, short for long ones.

    Answers are mirrored at `MIRROR` tokens: twice as long becomes half as long.
    """

    MIRROR = 256
    declared = f"adversary (lengths mirrored at {MIRROR} tokens: the order is reversed)"

    def predict(self, asked: Asked) -> Prediction:
        """The mirrored truth, without a margin."""
        said = self.MIRROR * self.MIRROR / max(1, asked.truth)
        return ordered(said, said)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Learn nothing."""
