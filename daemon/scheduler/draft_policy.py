"""Whether drafts pay, and how many: the most tokens a second, by live acceptance and step times.

A step of R rows that takes T seconds brings R tokens. One more draft of a row brings p^j tokens if
it is the row's j-th and each is accepted with chance p, and takes d seconds. So it pays while p^j
over d is more than what the step brings a second without it. Where few rows run, a step reads the
weights for little, and drafts cost next to nothing; with each row more the step is worth more, and
drafts must be surer. That is the bound on rows, and step times alone set it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_GAIN = 1.05
"""What drafts must bring, of the tokens a second without them: a step that drafts is planned anew,
and none begins ahead of it."""
MOST_CHANCE = 0.97
"""No draft is surer: what is learned of the last ones says no more of the next."""

_FIRST_TRIED = 2.0
"""As if so many had been tried before, with the chance of all others."""
_KEPT = 0.7
"""Of what was learned, by each step that drafts: a quote ends, and another text begins."""
_KEPT_OF_ALL = 0.95
"""Of what was learned of all rows together, by each row that drafted."""
_BACK, _BACK_LONG, _LONG = 0.01, 0.05, 14
"""How far it goes back to the first chance with each step in which a row might have drafted, and
did not, so that it is tried again now and then; and how much further by how many could have been
drafted, of so many: those that quote at length are found soon."""
_FIRST_SHARE = 0.5
"""The chance of all before any row has drafted."""
_KEPT_TIME, _BACK_OF_TIME = 0.9, 0.01
"""Of what was seen of steps' times, by each step; how far that of steps with drafts goes back with
each step without."""


class DraftRecord:
    """What is known of all rows together: how likely their drafts are accepted, and what steps with
    drafts take beside others, beyond what their tokens do.
    """

    def __init__(self) -> None:
        self._accepted, self._tried = _FIRST_SHARE * _FIRST_TRIED, _FIRST_TRIED
        self._slowness = {False: 1.0, True: 1.0}  # with drafts or without: to what was expected

    @property
    def share(self) -> float:
        """The chance that a new row begins with."""
        return self._accepted / self._tried

    @property
    def factor(self) -> float:
        """How much longer a step with drafts takes than its tokens let expect: it is planned anew,
        and none is ahead of it.
        """
        return max(1.0, self._slowness[True] / self._slowness[False])

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Of so many drafts of a row, at least one, so many were accepted."""
        self._accepted = _KEPT_OF_ALL * self._accepted + num_accepted
        self._tried = _KEPT_OF_ALL * self._tried + min(num_accepted + 1, num_drafted)

    def timed(self, drafts: bool, ratio: float) -> None:
        """A step of decodes took so many times what its tokens let expect."""
        old = self._slowness[drafts]
        self._slowness[drafts] = old + (1.0 - _KEPT_TIME) * (min(ratio, 2.0 * old) - old)
        if not drafts:  # what was seen of others gets old, so that they are tried again
            self._slowness[True] += _BACK_OF_TIME * (self._slowness[False] - self._slowness[True])


@dataclass(slots=True)
class Chance:
    """How likely a row's next draft is accepted, if those before it were."""

    accepted: float
    tried: float  # those behind a draft that was not accepted were not

    @property
    def share(self) -> float:
        """The chance."""
        return min(MOST_CHANCE, self.accepted / self.tried)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Of so many drafts, at least one, so many were accepted."""
        self.accepted = _KEPT * self.accepted + num_accepted
        self.tried = _KEPT * self.tried + min(num_accepted + 1, num_drafted)

    def wait(self, offer: int) -> None:
        """It might have drafted so many, and did not."""
        back = _BACK + _BACK_LONG * min(1.0, offer / _LONG) ** 2
        self.accepted += back * (_FIRST_SHARE * _FIRST_TRIED - self.accepted)
        self.tried += back * (_FIRST_TRIED - self.tried)


def first_chance(share: float) -> Chance:
    """That of a row that has not drafted, where this is the chance of all."""
    return Chance(share * _FIRST_TRIED, _FIRST_TRIED)


def may_pay(num_rows: int, step_s: float, draft_s: float) -> bool:
    """Whether the surest draft would pay beside so many rows, whose step takes `step_s` alone."""
    return MOST_CHANCE * step_s > LEAST_GAIN * draft_s * num_rows


def allot(
    chances: Sequence[float],
    offers: Sequence[int],
    num_rows: int,
    step_s: float,
    draft_s: float,
    most: int,
    factor: float = 1.0,
) -> list[int]:
    """How many of their `offers` rows should draft, where each draft's `chances` are these; `most`
    in all.

    `num_rows` run, these among them, in a step that takes `step_s` without drafts; each draft adds
    `draft_s`, and a step with any takes `factor` times what that comes to.
    """
    granted = [0] * len(offers)
    gains = [chance if offer else 0.0 for chance, offer in zip(chances, offers, strict=True)]
    tokens, time_s = float(num_rows), step_s
    while sum(granted) < most:
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] <= 0.0 or gains[best] * time_s <= draft_s * tokens:
            break
        tokens += gains[best]
        time_s += draft_s
        granted[best] += 1
        more = granted[best] < offers[best]
        gains[best] = gains[best] * chances[best] if more else 0.0
    pays = tokens * step_s >= LEAST_GAIN * num_rows * time_s * factor
    return granted if pays else [0] * len(offers)
