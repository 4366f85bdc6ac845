"""TetriInfer section 3.3.2: a classifier of length ranges of a fixed granularity."""

import numpy as np

from daemon.predict.prediction import Asked, Float32
from daemon.predict.recent import Recent
from daemon.predict.store import Rows, VectorStore
from daemon.predict.trained import Trained

GRANULARITIES = (100, 200, 400)
"""Tokens; those that the paper measures."""


class Ranges:
    """Multinomial logistic regression on embedding and features; the last range has no end.

    It says the mean of the answers that lay in the most likely range: which of two answers of one
    range is longer, it does not know.
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
        for num_tokens in store.rows["num_tokens"].tolist():
            self._count(num_tokens)
        self._store = store
        self._trained = Trained(store, self._slopes, (0, self._num_ranges), self.DOUBT, seed)
        self.declared = (
            f"ranges:{granularity} (classifier of ranges of {granularity} tokens on embedding and"
            " features; error calibrated on recent answers)"
        )

    def guess(self, asked: Asked) -> float:
        """The mean of what was seen of the most likely range, or else the range's middle."""
        likely = int(self._trained(asked).argmax())
        seen = self._seen[likely]
        return seen.mean if len(seen) else (likely + 0.5) * self._granularity

    def learn(self) -> None:
        """Some steps more."""
        self._count(int(self._store.rows["num_tokens"][-1]))
        self._trained.learn()

    def _count(self, num_tokens: int) -> None:
        self._seen[min(num_tokens // self._granularity, self._num_ranges - 1)].add(num_tokens)

    def _slopes(self, rows: Rows, outputs: Float32) -> Float32:
        """Of the cross entropy."""
        shares: Float32 = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        truth = np.minimum(rows["num_tokens"] // self._granularity, self._num_ranges - 1)
        shares[np.arange(rows.size), truth] -= 1.0
        shares /= rows.size
        return shares
