"""TetriInfer section 3.3.2: a classifier of length ranges of a fixed granularity."""

import numpy as np
import numpy.typing as npt

from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.recent import Recent
from daemon.length_models.store import Rows, VectorStore, cut_short
from daemon.length_models.trained import Trained

Int = npt.NDArray[np.intp]

GRANULARITIES = (100, 200, 400)
"""Tokens of a range, as the paper measures."""


class Ranges:
    """Multinomial logistic regression on embedding and features; the last range has no end.

    It predicts the mean of past answers in the most likely range, so it cannot order two answers of
    one range.
    """

    LONGEST = 2000  # tokens; where the last range begins, or just before
    DEFAULT = 200
    WINDOW = 256  # answers of a range
    DOUBT = 300.0

    def __init__(self, store: VectorStore, granularity: int = DEFAULT, seed: int = 0) -> None:
        """`granularity`: tokens of a range."""
        self._granularity = granularity
        self._num_ranges = self.LONGEST // granularity + 1
        self._seen = [Recent(self.WINDOW) for _ in range(self._num_ranges)]
        self._count(store.rows)
        self._store = store
        self._trained = Trained(store, self._slopes, (0, self._num_ranges), self.DOUBT, seed)
        self.declared = (
            f"ranges:{granularity} (classifier of ranges of {granularity} tokens on embedding and"
            " features; error calibrated on recent answers)"
        )

    def guess(self, asked: Asked) -> float:
        """The mean of answers in the most likely range, or else the range's middle."""
        likely = int(self._trained(asked).argmax())
        seen = self._seen[likely]
        centre = (likely + 0.5) * self._granularity
        return seen.mean(beyond=centre) if len(seen) else centre

    def learn(self) -> None:
        """Train for some steps more."""
        self._count(self._store.rows[-1:])
        self._trained.learn()

    def _count(self, rows: Rows) -> None:
        columns = (self._range_of(rows), rows["num_tokens"], cut_short(rows))
        for number, *answer in zip(*(column.tolist() for column in columns), strict=True):
            self._seen[number].add(*answer)

    def _range_of(self, rows: Rows) -> Int:
        """[N]: the range in which each answer ended, or was cut."""
        ranges: Int = rows["num_tokens"].astype(np.intp) // self._granularity
        return np.minimum(ranges, self._num_ranges - 1)

    def _slopes(self, rows: Rows, outputs: Float32) -> Float32:
        """The slopes of the cross entropy; an answer that was cut may lie in any range from there
        on.
        """
        places, ended = np.arange(self._num_ranges), self._range_of(rows)[:, None]
        possible = np.where(cut_short(rows)[:, None], places >= ended, places == ended)
        truth = _shares(np.where(possible, outputs, np.float32(-np.inf)))
        return (_shares(outputs) - truth) / np.float32(rows.size)


def _shares(outputs: Float32) -> Float32:
    """[N, R]: the chance of each range."""
    shares: Float32 = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares
