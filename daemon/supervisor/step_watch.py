"""Whether a worker's step takes so long that the worker must hang. Pure: time is an argument.

A step may take at least `LEAST_S`, or `FACTOR` times what nearly all steps before it took, or as
many times what its own tokens should take by the worker's own measurement: so that the first long
prompt after a thousand short steps is no alarm. Nor is a machine so busy that the worker gets no
processor: it is given more time for as long as it waits for one, up to `PATIENCE` times as much.
Nor is one that says that it compiles, for up to `COMPILE_S`.
"""

from collections import deque
from collections.abc import Callable

LEAST_S = 5.0
FACTOR = 20.0
AGAIN_S = 0.25
"""An overdue step is looked at once more after so long: whoever looks late has read late too."""
PATIENCE = 6.0
COMPILE_S = 50.0
"""What one step may spend on compiling; a compiler that hangs is a hang as well, which is found
before a minute of silence lets the whole daemon look stuck."""
_KEPT = 512
_NEARLY_ALL = 0.99


class StepWatch:
    """One worker's steps: those sent and not answered, and how long answered ones took."""

    def __init__(self, step_s: float = 0.0, token_s: float = 0.0) -> None:
        self._step_s = step_s
        self._token_s = token_s
        self._sent: deque[tuple[float, int]] = deque()  # (when, tokens), oldest first
        self._took_s: deque[float] = deque(maxlen=_KEPT)
        self._began_s = 0.0  # the oldest one, as far as can be seen from here
        self._late = False  # the oldest one was seen to be
        self._starved_s = 0.0
        self._excused_s = 0.0  # of the oldest one

    @property
    def waiting(self) -> bool:
        """Whether a step is on its way."""
        return bool(self._sent)

    def sent(self, now: float, num_tokens: int) -> None:
        """A step of so many tokens was handed over."""
        if not self._sent:
            self._began_s = now
        self._sent.append((now, num_tokens))

    def answered(self, now: float) -> None:
        """The oldest step has answered."""
        self._sent.popleft()
        self._took_s.append(now - self._began_s - self._excused_s)
        self._began_s = now
        self._late = False
        self._excused_s = 0.0

    def compiles(self, now: float) -> None:
        """The worker says that it compiles: what the oldest step has taken so far was that."""
        if self._sent:
            self._excused_s = min(now - self._began_s, COMPILE_S)

    @property
    def limit_s(self) -> float:
        """How long the oldest step may take."""
        num_tokens = self._sent[0][1] if self._sent else 0
        expected_s = self._step_s + num_tokens * self._token_s
        return max(LEAST_S, FACTOR * max(self._usual_s(), expected_s)) + self._excused_s

    def look(self, now: float, starved_s: Callable[[], float]) -> float:
        """Seconds until the next look; 0.0: it hangs. Only while a step is on its way.

        `starved_s` tells for how many seconds the worker's threads have waited for a processor, in
        all its life; it is asked only about a step that is late.
        """
        limit_s = self.limit_s
        if now < self._began_s + limit_s:
            return self._began_s + limit_s - now
        before_s, self._starved_s = self._starved_s, starved_s()
        if not self._late:
            self._late = True
            return AGAIN_S
        starves = self._starved_s - before_s > AGAIN_S / 2
        return AGAIN_S if starves and now < self._began_s + PATIENCE * limit_s else 0.0

    def _usual_s(self) -> float:
        """What all but one step in a hundred took, of the last few hundred."""
        if not self._took_s:
            return 0.0
        return sorted(self._took_s)[int(_NEARLY_ALL * (len(self._took_s) - 1))]
