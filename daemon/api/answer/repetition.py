"""Detection of answers that repeat one piece without end, exactly and by their tokens.

A small model may fall into a phrase that it never leaves, and would fill the context with it.
"""

from collections.abc import Sequence

MAX_PERIOD = 256
"""Tokens of the longest piece whose repetition is detected."""
LOOK_EVERY = 16
"""Tokens of an answer between two looks at it."""
FEW_TOKENS = 8
"""Different tokens of a piece that may be data: rows of zeros, rulers, the same word."""
FEW_TOKENS_FACTOR = 2
"""Factor on the bound for such a piece. Models get stuck in those, too."""


class RepetitionDetector:
    """Counts how many of the newest tokens equal those one period before them.

    Where the newest `MAX_PERIOD` tokens recur p <= `MAX_PERIOD` tokens earlier, p is a period of
    the repetition for as long as it lasts: with its shortest one, q, the compared text has the
    periods p and q and at least p + q tokens, so also their greatest common divisor (Fine and
    Wilf), which then is q. So from there on tokens are compared with those p before them, and
    there is no search.
    """

    def __init__(self, max_repeated_tokens: int) -> None:
        """`max_repeated_tokens` may repeat earlier ones, or `MAX_PERIOD` if that is more."""
        self._most = max_repeated_tokens
        self._window = ""  # a letter for each token, since Python finds text in text fast
        self._period = 0  # of the repetition under way; 0: none
        self._num_repeated = 0  # tokens of it

    def push(self, tokens: Sequence[int]) -> bool:
        """Whether the answer has repeated itself for too long, with these tokens at its end.

        Call it for a few tokens at a time; it notices a repetition at most that much later.
        """
        self._window = (self._window + "".join(map(chr, tokens)))[-2 * MAX_PERIOD - len(tokens) :]
        if self._period and self._goes_on(len(tokens)):
            self._num_repeated += len(tokens)
        else:
            self._period = self._find()
            self._num_repeated = MAX_PERIOD if self._period else 0
        return bool(self._period) and self._num_repeated >= self._allowed()

    def _goes_on(self, num_tokens: int) -> bool:
        window, period = self._window, self._period
        return window[-num_tokens:] == window[-num_tokens - period : -period]

    def _find(self) -> int:
        """The period of the window's end, `MAX_PERIOD` tokens of which repeat others; 0: none."""
        window = self._window
        begin = len(window) - MAX_PERIOD
        if begin <= 0:
            return 0
        first = max(0, begin - MAX_PERIOD)
        found = window.find(window[begin:], first, len(window) - 1)
        return begin - found if found >= 0 else 0

    def _allowed(self) -> int:
        few = len(set(self._window[-self._period :])) <= FEW_TOKENS
        return self._most * FEW_TOKENS_FACTOR if few else self._most
