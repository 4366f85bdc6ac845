"""ALISE's speculative scheduler: preemptive shortest remaining time on fallible predictions."""

from daemon.cost.step_time import StepTimeModel
from daemon.memory.swap_space import PROACTIVE
from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.remaining import remaining_s
from daemon.sequence import NEVER, Sequence

AGING = 0.3
"""Seconds of head start for each second of age (the paper's virtual aging): one that waits
overtakes newcomers that are shorter by up to so much of its age."""

GUESS_TOKENS = 32
"""Output expected of a request without a prediction. Being doubled as it is reached, it makes those
that got least come first, as FastServe's queues do."""


class Speculative(Policy):
    """Ordered by predicted remaining time less a share of age, with preemption.

    Everything ages alike, so that ageing moves nobody who stands in the same queue: the order by
    remaining + AGING * arrival is that by remaining - AGING * age. An answer that outgrows its
    prediction is expected to be as long as nine in ten, then twice as long as it is (section 3.1).
    """

    name = "speculative"
    swap = PROACTIVE
    displaces = True
    reviews = True
    counts_down = True

    def enter(self, sequence: Sequence, pace: StepTimeModel) -> None:
        """Expect what was predicted, or what is common."""
        super().enter(sequence, pace)
        self.foretold(sequence)

    def foretold(self, sequence: Sequence) -> None:
        """Look again where it is expected to end, unless its limit ends it there."""
        if sequence.expected_tokens < 0:
            sequence.expected_tokens = min(GUESS_TOKENS, sequence.max_tokens)
        expected = sequence.expected_tokens
        sure = expected >= sequence.max_tokens
        sequence.review_at = NEVER if sure else sequence.num_prompt_tokens + expected

    def rank(self, sequence: Sequence, pace: StepTimeModel) -> float:
        """Seconds left, and its arrival's share."""
        return remaining_s(sequence, pace) + AGING * sequence.arrived_s

    def review(self, sequence: Sequence, num_output_tokens: int, pace: StepTimeModel) -> None:
        """It outgrew its prediction."""
        longer = sequence.high_tokens
        sequence.expected_tokens = (
            longer if longer > num_output_tokens else 2 * max(1, num_output_tokens)
        )
        self.foretold(sequence)
