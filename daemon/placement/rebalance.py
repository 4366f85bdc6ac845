"""Rebalancing: waiting sequences go from where answers run on to where answers ended early.

Aladdin's Algorithm 2. An instance's error is what its steps take beyond what was planned as its
sequences were placed: answers that run on add to it, those that ended early take from it. Each
move takes from the giver's error and adds to the taker's, as far as neither changes sign: so the
sum of errors falls with each, and nothing is ever moved back.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from daemon.cost.step_time import StepTimeModel

MOST_MOVES = 4
"""Most moves at one time."""


class PlanError(NamedTuple):
    """The difference between an instance's load and what was planned."""

    tokens: int  # of context
    num: int  # of sequences

    def seconds(self, step_time: StepTimeModel) -> float:
        """The time that it adds to a step."""
        return step_time.decode_s(self.num, self.tokens) - step_time.decode_s(0, 0)


NO_ERROR = PlanError(0, 0)


def moves(
    giver_s: float, taker_s: float, waiting: Iterable[tuple[float, float]]
) -> Iterator[tuple[int, float, float]]:
    """(number, giver's error, taker's error) of those that move, each with the errors after it.

    `waiting`: for each sequence the time it adds to a step of the giver, and of the taker.
    """
    count = 0
    for number, (here_s, there_s) in enumerate(waiting):
        if count == MOST_MOVES or giver_s <= 0.0 or taker_s >= 0.0:
            return
        if 0.0 < here_s <= giver_s and 0.0 < there_s <= -taker_s:
            giver_s, taker_s = giver_s - here_s, taker_s + there_s
            count += 1
            yield number, giver_s, taker_s
