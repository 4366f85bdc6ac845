"""The cheap model: boosted trees over a dozen and a half features; no encoder, microseconds."""

import math

from daemon.length_models.boosting import BoostedTrees
from daemon.length_models.inputs import columns_of, columns_of_rows, log_lengths
from daemon.length_models.prediction import Asked
from daemon.length_models.store import VectorStore, cut_short


class FeatureModel:
    """Fits the logarithm of the length, anew whenever the store has grown by a quarter."""

    FIRST = 64  # rows before the first fit
    ROWS = 4096  # newest rows to learn from
    MOST_WAIT = 512  # requests from one fit to the next
    declared = "features (boosted trees over prompt features; error calibrated on recent answers)"

    def __init__(self, store: VectorStore) -> None:
        self._store = store
        self._trees = BoostedTrees()
        self._until_fit = 0
        self.learn()

    def guess(self, asked: Asked) -> float:
        """The length that the trees predict."""
        return math.exp(min(self._trees(columns_of(asked)), 20.0))

    def learn(self) -> None:
        """Count down to the next fit."""
        self._until_fit -= 1
        num_rows = len(self._store)
        if num_rows < self.FIRST or self._until_fit > 0:
            return
        rows = self._store.rows[-self.ROWS :]
        self._trees.fit(columns_of_rows(rows), log_lengths(rows), cut_short(rows))
        self._until_fit = min(num_rows // 4, self.MOST_WAIT)
