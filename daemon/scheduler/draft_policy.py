"""Whether drafts pay, and how many: the most tokens a second, by live acceptance and step times.

A step of R rows that takes T seconds brings R tokens. One more draft of a row brings p^j tokens if
it is the row's j-th and each is accepted with chance p, and takes d seconds. So it pays while p^j
over d is more than what the step brings a second without it. Where few rows run, a step reads the
weights for little, and drafts cost next to nothing; with each row more the step is worth more, and
drafts must be surer. That is the bound on rows, and step times alone set it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

LEAST_GAIN = 1.05
"""What drafts must bring, of the tokens a second without them: a step that drafts is planned anew,
and none begins ahead of it."""
MOST_CHANCE = 0.97
"""No draft is surer: what is learned of the last ones says no more of the next."""

_FIRST_TRIED = 2.0
"""What was known before counts as if so many drafts had been tried: of a row's own what all rows'
were worth, and of those what is supposed at first.
"""
_FIRST_SHARES, _LONG = (0.4, 0.9), 14
"""The chance that is supposed where next to nothing is offered, and where so many tokens or more
are: a long stretch repeats there.
"""
KEPT = 0.7
"""Of what was learned of a row, by each step that drafts: a quote ends, and another text begins."""
_KEPT_OF_ALL = 0.95
"""Of what was learned of all rows together, by each row that drafted."""
_BACK, _BACK_LONG = 0.01, 0.05
"""How much is forgotten with each step in which a row might have drafted, and did not, so that it
is tried again now and then; and how much more where many could have been drafted: those that quote
at length are found soon."""
_KEPT_TIME, _BACK_OF_TIME = 0.9, 0.01
"""Of what was seen of steps' times, by each step; how far that of steps with drafts goes back with
each step without."""


@dataclass(slots=True)
class Trials:
    """Drafts that were tried, of which those behind one that was not accepted were not."""

    accepted: float = 0.0
    tried: float = 0.0

    def learn(self, num_drafted: int, num_accepted: int, kept: float) -> None:
        """Of so many drafts, at least one, so many were accepted; of what was before a share is
        `kept`.
        """
        self.accepted = kept * self.accepted + num_accepted
        self.tried = kept * self.tried + min(num_accepted + 1, num_drafted)

    def forget(self, offer: int) -> None:
        """So many might have been drafted, and were not."""
        kept = 1.0 - _BACK - _BACK_LONG * min(1.0, offer / _LONG) ** 2
        self.accepted *= kept
        self.tried *= kept

    def share(self, first: float) -> float:
        """The chance of a draft, if those before it are accepted, where `first` is supposed."""
        share = (self.accepted + _FIRST_TRIED * first) / (self.tried + _FIRST_TRIED)
        return min(MOST_CHANCE, share)


class DraftRecord:
    """What is known of all rows together: how likely drafts of an offer are accepted, and what
    steps with drafts take beside others, beyond what their tokens do.
    """

    def __init__(self) -> None:
        self._trials = [Trials() for _ in range(_LONG + 1)]  # by how many were offered
        self._slowness = {False: 1.0, True: 1.0}  # with drafts or without: to what was expected

    def share(self, offer: int) -> float:
        """The chance of a draft where so many are offered."""
        low, high = _FIRST_SHARES
        return self._of(offer).share(low + (high - low) * min(1.0, offer / _LONG))

    def _of(self, offer: int) -> Trials:
        return self._trials[min(offer, _LONG)]

    @property
    def factor(self) -> float:
        """How much longer a step with drafts takes than its tokens let expect: it is planned anew,
        and none is ahead of it.
        """
        return max(1.0, self._slowness[True] / self._slowness[False])

    def state(self) -> list[float]:
        """All it has learned, as plain numbers."""
        trials = chain.from_iterable((one.accepted, one.tried) for one in self._trials)
        return [*self._slowness.values(), *trials]

    @classmethod
    def restored(cls, state: Sequence[float]) -> "DraftRecord":
        """The record whose `state` this was."""
        record = cls()
        without, with_drafts, *trials = state
        record._slowness = {False: without, True: with_drafts}
        record._trials = [Trials(*pair) for pair in zip(trials[::2], trials[1::2], strict=True)]
        return record

    def learn(self, offer: int, num_drafted: int, num_accepted: int) -> None:
        """Of so many drafts of a row, at least one, so many were accepted."""
        self._of(offer).learn(num_drafted, num_accepted, _KEPT_OF_ALL)

    def forget(self, offer: int) -> None:
        """A step in which rows might have drafted so many drafts nothing."""
        self._of(offer).forget(offer)

    def timed(self, drafts: bool, ratio: float) -> None:
        """A step of decodes took so many times what its tokens let expect."""
        old = self._slowness[drafts]
        self._slowness[drafts] = old + (1.0 - _KEPT_TIME) * (min(ratio, 2.0 * old) - old)
        if not drafts:  # what was seen of others gets old, so that they are tried again
            self._slowness[True] += _BACK_OF_TIME * (self._slowness[False] - self._slowness[True])


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
    ahead: int = 0,
) -> list[int]:
    """How many of their `offers` rows should draft, where each draft's `chances` are these; `most`
    in all.

    `num_rows` run, these among them, in a step that takes `step_s` without drafts; each draft adds
    `draft_s`, and a step with any takes `factor` times what that comes to. Of each row so many
    tokens are `ahead` of the first draft, in steps in flight: what they are decides whether there
    will be any.
    """
    granted = [0] * len(offers)
    gains = [
        chance ** (1 + ahead) if offer else 0.0
        for chance, offer in zip(chances, offers, strict=True)
    ]
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
