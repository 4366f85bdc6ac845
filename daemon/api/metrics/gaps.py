"""A histogram of many small observations: noting one is an append to a list."""

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

MOST_PENDING = 8192


class Gaps(Collector):
    """Seconds between one answer's tokens. `pending.append(gap_s)` notes one.

    A library's histogram takes a lock and looks for the bucket at each of them, which would cost a
    tenth of what a streamed token costs. Here `fold` sorts thousands of them in at once.
    """

    def __init__(self, name: str, text: str, model: str, bounds_s: Sequence[float]) -> None:
        self.pending: list[float] = []
        self._name, self._text, self._model = name, text, model
        self._bounds_s = np.asarray(bounds_s)
        self._counts = np.zeros(len(bounds_s) + 1, np.int64)
        self._sum_s = 0.0

    def fold(self) -> None:
        """Sort what is pending into the buckets; called when there is much of it."""
        gaps_s = np.asarray(self.pending)
        self.pending.clear()
        places = np.searchsorted(self._bounds_s, gaps_s)
        self._counts += np.bincount(places, minlength=self._counts.size)
        self._sum_s += float(gaps_s.sum())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histogram, as the library's registry asks for it."""
        self.fold()
        edges = [*(str(bound) for bound in self._bounds_s.tolist()), "+Inf"]
        buckets = list(zip(edges, np.cumsum(self._counts).tolist(), strict=True))
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        family.add_metric([self._model], buckets, self._sum_s)
        yield family
