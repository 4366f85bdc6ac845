"""The watch for hanging steps, which their worker will not end. Pure: time is an argument.

A step may take `LEAST_S`, or `FACTOR` times as long as nearly all steps before it, or `FACTOR`
times its tokens' expected time by the worker's own measurement: the first long prompt after a
thousand short steps is no alarm. `Patience` knows other excuses. A worker that says it compiles is
excused for up to `COMPILE_S`.
"""

from collections import deque
from collections.abc import Callable

from daemon.supervisor.patience import Patience

LEAST_S = 5.0
FACTOR = 20.0
COMPILE_S = 50.0
"""Longest excuse of one step for compiling. A compiler that hangs is a hang as well, found before a
minute of silence lets the whole daemon look stuck.
"""
_KEPT = 512
_NEARLY_ALL = 0.99


class StepWatch:
    """One worker's steps: those in flight, and how long answered ones took."""

    def __init__(self, step_s: float = 0.0, token_s: float = 0.0) -> None:
        self._step_s = step_s
        self._token_s = token_s
        self._sent: deque[int] = deque()  # tokens of each, the oldest first
        self._took_s: deque[float] = deque(maxlen=_KEPT)
        self._patience = Patience()  # with the oldest one, since the previous one answered
        self._excused_s = 0.0  # of the oldest one

    @property
    def waiting(self) -> bool:
        """Whether a step is in flight."""
        return bool(self._sent)

    def sent(self, now: float, num_tokens: int) -> None:
        """A step of `num_tokens` was sent."""
        if not self._sent:
            self._patience.begin(now)
        self._sent.append(num_tokens)

    def answered(self, now: float) -> None:
        """The oldest step has answered."""
        self._sent.popleft()
        self._took_s.append(self._patience.waited_s(now) - self._excused_s)
        self._patience.begin(now)
        self._excused_s = 0.0

    def compiles(self, now: float) -> None:
        """The worker says that it compiles: the oldest step's time so far is excused."""
        if self._sent:
            self._excused_s = min(self._patience.waited_s(now), COMPILE_S)

    @property
    def limit_s(self) -> float:
        """Longest time that the oldest step may take."""
        num_tokens = self._sent[0] if self._sent else 0
        expected_s = self._step_s + num_tokens * self._token_s
        return max(LEAST_S, FACTOR * max(self._usual_s(), expected_s)) + self._excused_s

    def hangs(self, now: float, excused_s: Callable[[], float]) -> bool:
        """Look, every `LOOK_S` while a step is in flight: return whether its worker hangs.

        `excused_s` is `Patience`'s.
        """
        return self._patience.runs_out(now, self.limit_s, excused_s)

    def _usual_s(self) -> float:
        """The 99th percentile of the last few hundred steps."""
        if not self._took_s:
            return 0.0
        return sorted(self._took_s)[int(_NEARLY_ALL * (len(self._took_s) - 1))]
