"""Aladdin section 4: the mean output of finished requests whose prompts were about as long."""

from collections import defaultdict

from daemon.predict.calibration import TAIL, Calibration, ordered
from daemon.predict.prediction import Asked, Prediction
from daemon.predict.recent import Recent
from daemon.predict.store import VectorStore


class ConditionalMean:
    """Prompts fall into classes by powers of two; the quantiles are those of the class's history.

    A class counts once it has `LEAST` requests, before that all requests do, and before anything
    finished, `FIRST` tokens.
    """

    LEAST = 8
    FIRST = 256
    CLASS_WINDOW = 1024
    WINDOW = 4096
    declared = (
        "mean (of finished requests with prompts of the same power of two; error not bounded)"
    )

    def __init__(self, store: VectorStore | None = None) -> None:
        """With a store it knows what that remembers, and adds to it."""
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
        if not len(lengths):
            doubt = Calibration.FIRST
            return ordered(self.FIRST / doubt, self.FIRST, self.FIRST * doubt, asked.max_tokens)
        return ordered(lengths.lower(TAIL), lengths.mean, lengths.upper(TAIL), asked.max_tokens)

    def observe(self, asked: Asked, num_tokens: int) -> None:
        """Count it in its class and among all."""
        self._count(asked.num_prompt_tokens, num_tokens)
        if self._store is not None:
            self._store.add(asked, num_tokens)

    def recall(self, store: VectorStore) -> None:
        """Count all that a store remembers."""
        rows = store.rows
        prompts, lengths = rows["num_prompt_tokens"].tolist(), rows["num_tokens"].tolist()
        for num_prompt_tokens, num_tokens in zip(prompts, lengths, strict=True):
            self._count(num_prompt_tokens, num_tokens)

    def _count(self, num_prompt_tokens: int, num_tokens: int) -> None:
        self._classes[num_prompt_tokens.bit_length()].add(num_tokens)
        self._all.add(num_tokens)
