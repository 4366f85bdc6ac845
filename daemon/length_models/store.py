"""The store of finished requests and their answers' lengths: bounded, aged, without text."""

import math

import numpy as np
import numpy.typing as npt

from daemon.length_models.features import NUM_FEATURES
from daemon.length_models.prediction import Asked, Bool, Float32

Rows = npt.NDArray[np.void]
"""Rows of `ROW`, oldest first."""

ROW = np.dtype(
    [
        ("time_s", "<f8"),  # finish time of any clock that survives a restart
        ("num_prompt_tokens", "<i4"),
        ("max_tokens", "<i4"),
        ("num_tokens", "<i4"),  # of the answer; at `max_tokens` it was cut
        ("guess", "<i4"),  # of the store's predictor at the time; 0: none
        ("features", "<f4", (NUM_FEATURES,)),
    ]
)

LONGEST_PAUSE_S = 86_400.0
"""The longest pause that is believed: clocks err after a start, before the network sets them."""

_FIRST_CAPACITY = 256
_MOST_TOKENS = (1 << 31) - 1


def cut_short(rows: Rows) -> Bool:
    """[N]: whether the answer ended at its limit; it would be longer."""
    limits = rows["max_tokens"]
    cut: Bool = (limits > 0) & (rows["num_tokens"] >= limits)
    return cut


class VectorStore:
    """At most `max_rows` finished requests, none older than `max_age_s`; the oldest go first.

    Rows lie in order of time in one piece of memory, so that a search is one product of a matrix
    and a vector: for N rows of D components N * D multiplications.
    """

    def __init__(self, max_rows: int = 20_000, max_age_s: float = math.inf) -> None:
        self.max_rows = max(1, max_rows)
        self.max_age_s = max_age_s
        self.guesser = ""  # the predictor that made the guesses, which calibrate it alone
        self._now_s = -math.inf
        self._first = self._end = 0  # of the valid rows
        self._rows: Rows = np.zeros(min(_FIRST_CAPACITY, self._most_capacity), ROW)
        self._vectors: Float32 = np.zeros((self._rows.size, 0), np.float32)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def rows(self) -> Rows:
        """[N] of `ROW`, oldest first: a view, good until the next change."""
        return self._rows[self._first : self._end]

    @property
    def vectors(self) -> Float32:
        """[N, D]: a view likewise; zeros for a request without a vector. D is 0 if none had one."""
        return self._vectors[self._first : self._end]

    @property
    def dim(self) -> int:
        """D, the components of a vector."""
        return int(self._vectors.shape[1])

    def resume(self, now_s: float) -> None:
        """Go on at `now_s` after a pause. Where by the clock rows are of the future, or the pause
        was longer than `LONGEST_PAUSE_S`, it is not believed: rows keep their ages.
        """
        pause_s = now_s - self._now_s
        if len(self) and not 0.0 <= pause_s <= LONGEST_PAUSE_S:
            self.rows["time_s"] += pause_s
            self._now_s = now_s
        self.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Drop rows that are too old at `now_s`. Time never runs backwards here."""
        self._now_s = max(self._now_s, now_s)
        oldest_s = self._now_s - self.max_age_s
        if len(self) and self._rows["time_s"][self._first] < oldest_s:
            self._first += int(np.searchsorted(self.rows["time_s"], oldest_s))

    def add(self, asked: Asked, num_tokens: int) -> None:
        """Add a request that finished now with `num_tokens`."""
        self._make_room(asked.vector)
        self._rows[self._end] = (
            max(self._now_s, 0.0),
            asked.num_prompt_tokens,
            min(asked.max_tokens, _MOST_TOKENS),
            num_tokens,
            min(round(asked.guess), _MOST_TOKENS),
            0.0 if asked.features is None else asked.features,
        )
        if self.dim:
            self._vectors[self._end] = 0.0 if asked.vector is None else asked.vector
        self._end += 1
        self._first = max(self._first, self._end - self.max_rows)

    def nearest(self, vector: Float32, most: int, least_cosine: float) -> tuple[Float32, Rows]:
        """Cosines and rows of the up to `most` nearest with at least `least_cosine`.

        `vector` has length 1. Among equals the newest count.
        """
        if vector.size != self.dim:
            return np.zeros(0, np.float32), self.rows[:0]
        cosines = self.vectors @ vector
        found = np.flatnonzero(cosines >= least_cosine)
        if found.size > most:
            found = found[np.lexsort((found, cosines[found]))[-most:]]
        return cosines[found], self.rows[found]

    def signed_by(self, guesser: str) -> None:
        """Keep guesses of this predictor from now on; another predictor's are forgotten."""
        if self.guesser != guesser:
            self.rows["guess"] = 0
            self.guesser = guesser

    def fill(self, rows: Rows, vectors: Float32) -> None:
        """Replace all rows by these, or by the newest where they are too many."""
        rows, vectors = rows[-self.max_rows :], vectors[-self.max_rows :]
        self._rows, self._vectors = rows.copy(), vectors.copy()
        self._first, self._end = 0, rows.size
        self._now_s = float(rows["time_s"][-1]) if rows.size else -math.inf

    @property
    def _most_capacity(self) -> int:
        """The largest capacity: rows move to the front only once a quarter of them is new."""
        return self.max_rows + max(64, self.max_rows // 4)

    def _make_room(self, vector: Float32 | None) -> None:
        """Make room for a row and its vector; vectors of another encoder are dropped."""
        count = len(self)
        dim = self.dim if vector is None else vector.size
        full = self._end == self._rows.size
        if not full and dim == self.dim:
            return
        capacity = self._rows.size
        if full and 2 * count >= capacity:
            capacity = min(max(2 * capacity, _FIRST_CAPACITY), self._most_capacity)
        rows = np.zeros(capacity, ROW)
        vectors = np.zeros((capacity, dim), np.float32)
        rows[:count] = self.rows
        if dim == self.dim:
            vectors[:count] = self.vectors
        self._rows, self._vectors = rows, vectors
        self._first, self._end = 0, count
