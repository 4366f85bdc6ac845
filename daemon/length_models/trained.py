"""A network that learns from a store a few rows at a time; MLP and ranges share it."""

from collections.abc import Callable
from functools import partial

import numpy as np

from daemon.length_models.inputs import NUM_COLUMNS, columns_of, columns_of_rows, with_vectors
from daemon.length_models.network import Network
from daemon.length_models.prediction import Asked, Float32
from daemon.length_models.store import Rows, VectorStore

Slopes = Callable[[Rows, Float32], Float32]
"""From stored rows [N] and the network's outputs of them [N, O] to the loss's gradient [N, O]."""


class Trained:
    """Samples rows of the store and takes some steps for every request that finishes.

    So the cost of learning is spread evenly: no request waits while a whole model is fitted. Only
    when the store has doubled does it begin anew, with columns scaled anew.
    """

    ROWS = 64  # of one step
    STEPS = 2  # for each finished request
    FEW_ROWS = 512  # weights shrink no more strongly with fewer rows: they would vanish
    FIRST_ROWS = 32  # before that it learns nothing
    FIRST_STEPS = (300, 2000)  # when it begins: at least, at most
    FARTHEST = 4.0  # standard deviations; what was never seen is not extrapolated further
    LEAST_SCALE = 0.1  # a column that hardly differs is not blown up further

    def __init__(
        self,
        store: VectorStore,
        slopes: Slopes,
        shape: tuple[int, int],
        doubt: float,
        seed: int = 0,
    ) -> None:
        """`shape`: hidden units (0: the model is linear) and outputs. `doubt`: how strongly weights
        are shrunk to zero, against the evidence of one row.
        """
        self._store = store
        self._slopes = slopes
        self._shape = shape
        self._doubt = doubt
        self._seed = seed
        self._begin()

    def __call__(self, asked: Asked) -> Float32:
        """[O]: the network's outputs for a request; vectors of other encoders are ignored."""
        vector = np.zeros((1, self._dim), np.float32)
        if asked.vector is not None and asked.vector.size == self._dim:
            vector[0] = asked.vector
        outputs: Float32 = self._network(self._scaled(columns_of(asked)[None], vector))[0]
        return outputs

    def learn(self) -> None:
        """Train for some steps; from the beginning where vectors are of another encoder now."""
        if self._store.dim != self._dim or len(self._store) >= self._next_rows:
            self._begin()
        elif len(self._store) >= self.FIRST_ROWS:
            self._take(self.STEPS)

    def _begin(self) -> None:
        num_rows = len(self._store)
        self._dim = self._store.dim
        self._next_rows = max(2 * num_rows, self.FIRST_ROWS)
        sizes = [size for size in (NUM_COLUMNS + self._dim, *self._shape) if size]
        self._network = Network(sizes, self._seed)
        self._chance = np.random.default_rng(self._seed)
        columns = columns_of_rows(self._store.rows)
        self._centre = columns.mean(axis=0) if num_rows else np.zeros(NUM_COLUMNS, np.float32)
        spread = columns.std(axis=0) if num_rows else np.ones(NUM_COLUMNS, np.float32)
        self._scale = np.maximum(spread, np.float32(self.LEAST_SCALE))
        if num_rows >= self.FIRST_ROWS:
            least, most = self.FIRST_STEPS
            self._take(min(max(least, 2 * self.STEPS * num_rows), most))

    def _take(self, num_steps: int) -> None:
        rows, vectors = self._store.rows, self._store.vectors
        decay = self._doubt / max(rows.size, self.FEW_ROWS)
        for _ in range(num_steps):
            picked = self._chance.integers(rows.size, size=self.ROWS)
            some = rows[picked]
            inputs = self._scaled(columns_of_rows(some), vectors[picked])
            self._network.step(inputs, partial(self._slopes, some), decay)

    def _scaled(self, columns: Float32, vectors: Float32) -> Float32:
        """[N, 2 + F + D]: the network's inputs."""
        scaled = (columns - self._centre) / self._scale
        return with_vectors(scaled.clip(-self.FARTHEST, self.FARTHEST), vectors)
