"""ALISE's Algorithm 1: the lengths of the most similar requests that finished."""

import numpy as np

from daemon.length_models.learned import LengthModel
from daemon.length_models.prediction import Asked, Float64
from daemon.length_models.store import Rows, VectorStore, cut_short


class Retrieval:
    """The mean length of up to `most` neighbours, weighted by similarity; a fallback without any.

    Neighbours are requests whose vector has at least the cosine `least_cosine` (the paper's s0)
    with this one's.
    """

    MOST = 8  # the paper's k
    LEAST_COSINE = 0.7
    declared = (
        "retrieval (mean of similar finished requests, else a regressor; error calibrated on"
        " recent answers)"
    )

    def __init__(
        self,
        store: VectorStore,
        fallback: LengthModel,
        most: int = MOST,
        least_cosine: float = LEAST_COSINE,
    ) -> None:
        self._store = store
        self._fallback = fallback
        self._most = most
        self._least_cosine = least_cosine

    def guess(self, asked: Asked) -> float:
        """Case II of the algorithm where similar requests are stored, else case I."""
        if asked.vector is not None:
            cosines, rows = self._store.nearest(asked.vector, self._most, self._least_cosine)
            if cosines.size:
                return float(np.average(self._lengths(asked, rows), weights=cosines))
        return self._fallback.guess(asked)

    def _lengths(self, asked: Asked, rows: Rows) -> Float64:
        """[K]: the lengths of the neighbours' answers. An answer cut short of this request's limit
        is as long as the fallback expects, if that is more: without it only short ones would count.
        """
        lengths: Float64 = rows["num_tokens"].astype(np.float64)
        unknown = cut_short(rows)
        if asked.max_tokens > 0:
            unknown &= rows["max_tokens"] < asked.max_tokens
        if unknown.any():
            lengths[unknown] = np.maximum(lengths[unknown], self._fallback.guess(asked))
        return lengths

    def learn(self) -> None:
        """Have the fallback learn; the store is this model's own memory."""
        self._fallback.learn()
