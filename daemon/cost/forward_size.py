"""The target forward size (TFS): the tokens with which a step uses its device nearly fully.

EcoServe (sections 1 and 3.2) adds prompts to a step up to this size: with fewer tokens the
device is partly idle, with more a step takes longer and computes hardly more per second.
"""

from collections.abc import Callable
from typing import NamedTuple

from daemon.cost.profile import Operators, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork

FULL_SHARE = 0.9
"""The share of the best tokens per second that counts as full. The rest costs more than it gives: a
step whose base takes as long as b tokens needs 9 b for nine tenths, 19 b for nineteen twentieths,
and all streams wait for it."""


class ForwardSize(NamedTuple):
    """A target forward size, and the measurements behind it."""

    num_tokens: int
    most_tokens: int  # the largest step that is known
    tokens_per_s: float  # with steps of `num_tokens`

    @property
    def levelled(self) -> bool:
        """Whether twice as many tokens are known to gain no more than the last share. Else the
        device may not be full yet with all that was measured, and the size is the least it can be.
        """
        return 2 * self.num_tokens <= self.most_tokens

    def within(self, budget_tokens: int) -> int:
        """The size, at most `budget_tokens`; 0: too little is known."""
        known = self.levelled or self.most_tokens >= budget_tokens
        return min(self.num_tokens, budget_tokens) if known else 0


def forward_size(
    step_s: Callable[[int], float], most_tokens: int, least_tokens: int = 1
) -> ForwardSize:
    """The smallest size whose tokens per second reach `FULL_SHARE` of the best, of steps from
    `least_tokens` to `most_tokens`, which take `step_s` each.
    """
    sizes = range(least_tokens, most_tokens + 1)
    rates = [size / step_s(size) for size in sizes]
    full = FULL_SHARE * max(rates)
    place = next(place for place, rate in enumerate(rates) if rate >= full)
    return ForwardSize(sizes[place], most_tokens, rates[place])


def size_of(profile: Profile) -> ForwardSize:
    """The target forward size of a profile: for steps that compute one prompt from its start, up to
    the longest one that the model takes and, where the profile says so, that was measured.
    """
    cost, most_tokens = step_cost(profile.step), profile.model.context_len
    if isinstance(profile.step, Operators):
        most_tokens = min(most_tokens, int(profile.step.tokens_s.at[-1]))
    return forward_size(lambda size: cost.step_s(StepWork(0, 0, ((size, 0),), 1)), most_tokens)
