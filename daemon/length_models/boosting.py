"""Gradient-boosted symmetric trees, in numpy: a prediction takes some microseconds.

Every level of a tree asks one question of all its nodes, so a tree is a few (column, threshold)
pairs and a table of 2^depth values, and all trees are evaluated at once.
"""

import numpy as np
import numpy.typing as npt

from daemon.length_models.prediction import Bool, Float32

Int = npt.NDArray[np.intp]


class BoostedTrees:
    """Fits y = f(x) for squared error; before `fit`, f is 0.

    Where y is only a lower bound, f may be more at no cost.
    """

    DEPTH = 3
    NUM_BINS = 16
    PRIOR = 20.0  # rows' worth of doubt: a leaf's value is shrunk towards zero

    def __init__(self, num_trees: int = 60, rate: float = 0.1) -> None:
        self._num_trees = num_trees
        self._rate = rate
        self._base = 0.0
        self._columns: Int = np.zeros((0, self.DEPTH), np.intp)
        self._thresholds: Float32 = np.zeros((0, self.DEPTH), np.float32)
        self._values: Float32 = np.zeros(0, np.float32)  # [trees * 2^depth]
        self._places: Int = 1 << np.arange(self.DEPTH)[::-1]
        self._starts: Int = np.zeros(0, np.intp)

    def __call__(self, x: Float32) -> float:
        """f of one row x [C]."""
        leaves = (x[self._columns] > self._thresholds) @ self._places + self._starts
        return self._base + float(self._values[leaves].sum())

    def fit(self, x: Float32, y: Float32, at_least: Bool) -> None:
        """Fit anew to N >= 1 rows x [N, C] and y [N]; `at_least` [N]: y is a lower bound."""
        edges = _edges(x, self.NUM_BINS)
        codes = np.stack(
            [np.searchsorted(edge, column) for edge, column in zip(edges, x.T, strict=True)], 1
        )
        histogram = _Histogram(codes, self.NUM_BINS)
        self._base = float((y if at_least.all() else y[~at_least]).mean())
        rest = y.astype(np.float64) - self._base
        columns, thresholds, values = [], [], []
        for _ in range(self._num_trees):
            lack = np.where(at_least, rest.clip(min=0.0), rest)
            questions, leaf = self._tree(histogram, codes, lack)
            value = self._leaf_values(leaf, lack)
            rest -= value[leaf]
            columns.append([column for column, _ in questions])
            thresholds.append([_edge(edges[column], split) for column, split in questions])
            values.append(value)
        self._columns = np.array(columns, np.intp)
        self._thresholds = np.array(thresholds, np.float32)
        self._values = np.concatenate(values).astype(np.float32)
        self._starts = np.arange(self._num_trees) << self.DEPTH

    def _tree(
        self, histogram: "_Histogram", codes: Int, rest: npt.NDArray[np.float64]
    ) -> tuple[list[tuple[int, int]], Int]:
        """DEPTH questions (column, bin), greedily chosen, and each row's leaf [N]."""
        leaf: Int = np.zeros(rest.size, np.intp)
        questions = []
        for level in range(self.DEPTH):
            column, split = histogram.best_split(leaf, 1 << level, rest, self.PRIOR)
            questions.append((column, split))
            leaf = 2 * leaf + (codes[:, column] > split)
        return questions, leaf

    def _leaf_values(self, leaf: Int, rest: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        num_leaves = 1 << self.DEPTH
        counts = np.bincount(leaf, minlength=num_leaves)
        sums = np.bincount(leaf, rest, minlength=num_leaves)
        return self._rate * sums / (counts + self.PRIOR)


class _Histogram:
    """Sums over rows by leaf, column and bin."""

    def __init__(self, codes: Int, num_bins: int) -> None:
        self._num_columns = codes.shape[1]
        self._num_bins = num_bins
        self._cells = codes + num_bins * np.arange(self._num_columns)  # [N, C]

    def best_split(
        self, leaf: Int, num_leaves: int, rest: npt.NDArray[np.float64], prior: float
    ) -> tuple[int, int]:
        """(column, bin): rows of a higher bin go right; the largest drop of the squared error."""
        shape = (num_leaves, self._num_columns, self._num_bins)
        cells = (self._cells + (leaf * self._num_columns * self._num_bins)[:, None]).ravel()
        size = num_leaves * self._num_columns * self._num_bins
        weights = np.repeat(rest, self._num_columns)
        left_sum = np.bincount(cells, weights, size).reshape(shape).cumsum(axis=2)
        left_count = np.bincount(cells, minlength=size).reshape(shape).cumsum(axis=2)
        right_sum = left_sum[:, :, -1:] - left_sum
        right_count = left_count[:, :, -1:] - left_count
        drop = left_sum**2 / (left_count + prior) + right_sum**2 / (right_count + prior)
        best = int(drop.sum(axis=0).argmax())
        return divmod(best, self._num_bins)


def _edges(x: Float32, num_bins: int) -> list[Float32]:
    """The up to `num_bins` - 1 thresholds of each column: distinct quantiles."""
    shares = np.arange(1, num_bins) / num_bins
    quantiles = np.quantile(x, shares, axis=0, method="lower")
    return [np.unique(column).astype(np.float32) for column in quantiles.T]


def _edge(edges: Float32, split: int) -> float:
    """The threshold over bin `split`; infinite over the last bin."""
    return float(edges[split]) if split < edges.size else np.inf
