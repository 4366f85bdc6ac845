"""Aladdin section 4: the mean output of finished requests with prompts of similar length."""

from collections import defaultdict

from daemon.length_models.calibration import TAIL, Calibration, ordered
from daemon.length_models.prediction import Asked, Prediction
from daemon.length_models.recent import Recent
from daemon.length_models.store import VectorStore, cut_short


class ConditionalMean:
    """Prompts fall into classes by powers of two; the quantiles are those of the class's history.

    A class counts once it has `LEAST` requests, before that all requests do, and before anything
    finished, `FIRST` tokens; answers of which only is known that they were longer than all
    whole ones are predicted likewise.
    """

    LEAST = 8
    FIRST = 256
    CLASS_WINDOW = 1024
    WINDOW = 4096
    declared = (
        "mean (of finished requests with prompts of the same power of two; error not bounded)"
    )

    def __init__(self, store: VectorStore | None = None) -> None:
        """With a store it starts from the store's rows, and adds to them."""
        self._classes: defaultdict[int, Recent] = defaultdict(lambda: Recent(self.CLASS_WINDOW))
        self._all = Recent(self.WINDOW)
        self._store = store
        if store is not None:
            self.recall(store)

    def predict(self, asked: Asked) -> Prediction:
        """The class's mean so far."""
        lengths = self._classes.get(asked.num_prompt_tokens.bit_length())
        if lengths is None or len(lengths) < self.LEAST:
            lengths = self._all
        most = self.FIRST * Calibration.FIRST
        if not len(lengths):
            return ordered(self.FIRST, most, asked.max_tokens)
        return ordered(lengths.mean(self.FIRST), lengths.upper(TAIL, most), asked.max_tokens)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Count a finished request in its class and among all."""
        self._count(asked.num_prompt_tokens, num_tokens, asked.cuts(num_tokens))
        if self._store is not None:
            self._store.add(asked, num_tokens)

    def recall(self, store: VectorStore) -> None:
        """Count all rows of a store."""
        rows = store.rows
        columns = (rows["num_prompt_tokens"], rows["num_tokens"], cut_short(rows))
        for row in zip(*(column.tolist() for column in columns), strict=True):
            self._count(*row)

    def _count(self, num_prompt_tokens: int, num_tokens: int, cut: bool) -> None:
        self._classes[num_prompt_tokens.bit_length()].add(num_tokens, cut)
        self._all.add(num_tokens, cut)
