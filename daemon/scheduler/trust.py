"""Trust in the predictor: whether its predictions order answers well enough to be followed."""

from collections import deque

_COMPARED = 8
_SHARE = 0.02
_ENOUGH = 0.6


class PredictorTrust:
    """The share of pairs of answers that predictions put into the right order; a half is chance.

    Each answer that ends is compared with the last few. While too few of the pairs are in the
    right order, schedulers do as if nothing had been predicted: an adversary that calls long
    answers short would otherwise make them first.
    """

    def __init__(self) -> None:
        self.in_order = 0.75  # smoothed share of pairs
        self._ended: deque[tuple[int, int]] = deque(maxlen=_COMPARED)  # (predicted, true)

    @property
    def holds(self) -> bool:
        """Whether to follow predictions."""
        return self.in_order >= _ENOUGH

    def observe(self, predicted: int, true: int) -> None:
        """An answer ended."""
        for other_predicted, other_true in self._ended:
            if other_true != true and other_predicted != predicted:
                agree = (predicted < other_predicted) == (true < other_true)
                self.in_order += _SHARE * (agree - self.in_order)
        self._ended.append((predicted, true))

    def state(self) -> tuple[float, list[tuple[int, int]]]:
        """All it has learned, as plain numbers."""
        return self.in_order, list(self._ended)

    @classmethod
    def restored(cls, state: tuple[float, list[tuple[int, int]]]) -> "PredictorTrust":
        """The judgement whose `state` this was."""
        trust = cls()
        trust.in_order = state[0]
        trust._ended.extend((predicted, true) for predicted, true in state[1])
        return trust
