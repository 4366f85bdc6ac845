"""A histogram with cheap observations: each is an append to a list."""

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

MOST_PENDING = 8192


class Gaps(Collector):
    """A histogram of seconds between an answer's tokens; `pending.append(gap_s)` observes.

    The library's histogram takes a lock and searches the bucket for each, which would cost a tenth
    of a streamed token. Here `fold` sorts thousands of them in at once.
    """

    def __init__(self, name: str, text: str, model: str, bounds_s: Sequence[float]) -> None:
        self.pending: list[float] = []
        self._name, self._text, self._model = name, text, model
        self._bounds_s = np.asarray(bounds_s)
        self._counts = np.zeros(len(bounds_s) + 1, np.int64)
        self._sum_s = 0.0

    def fold(self) -> None:
        """Sort pending observations into the buckets."""
        gaps_s = np.asarray(self.pending)
        self.pending.clear()
        places = np.searchsorted(self._bounds_s, gaps_s)
        self._counts += np.bincount(places, minlength=self._counts.size)
        self._sum_s += float(gaps_s.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histogram, for the library's registry."""
        self.fold()
        edges = [*(str(bound) for bound in self._bounds_s.tolist()), "+Inf"]
        buckets = list(zip(edges, np.cumsum(self._counts).tolist(), strict=True))
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        family.add_metric([self._model], buckets, self._sum_s)
        yield family
