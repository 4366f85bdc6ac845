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

_FIRST_ACCEPTED, _FIRST_TRIED = 1.0, 2.0
"""As if so many had been tried before: a new row begins with drafts accepted one in two."""
_KEPT = 0.7
"""Of what was learned, by each step that drafts: a quote ends, and another text begins."""
_BACK = 0.03
"""How far it goes back to the first values with each step in which a row might have drafted, and
did not: so it is tried again now and then."""


@dataclass(slots=True)
class Chance:
    """How likely a row's next draft is accepted, if those before it were."""

    accepted: float = _FIRST_ACCEPTED
    tried: float = _FIRST_TRIED  # those behind a draft that was not accepted were not

    @property
    def share(self) -> float:
        """The chance."""
        return min(MOST_CHANCE, self.accepted / self.tried)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Of so many drafts, at least one, so many were accepted."""
        self.accepted = _KEPT * self.accepted + num_accepted
        self.tried = _KEPT * self.tried + min(num_accepted + 1, num_drafted)

    def wait(self) -> None:
        """It might have drafted, and did not."""
        self.accepted += _BACK * (_FIRST_ACCEPTED - self.accepted)
        self.tried += _BACK * (_FIRST_TRIED - self.tried)


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
) -> list[int]:
    """How many of their `offers` rows should draft, where each draft's `chances` are these; `most`
    in all.

    `num_rows` run, these among them, in a step that takes `step_s` without drafts; each draft adds
    `draft_s`.
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
    pays = tokens * step_s >= LEAST_GAIN * num_rows * time_s
    return granted if pays else [0] * len(offers)
